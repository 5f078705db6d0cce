# Short names for what scripts/ does; the scripts are the real thing.
.DEFAULT_GOAL := help
.PHONY: help demo down status test short lint

help: ## print this
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile

demo: ## start four cells on this machine, seeded
	@scripts/demo up --local

down: ## stop them and leave nothing behind
	@scripts/demo down

status: ## what runs, and where
	@scripts/demo status

test: ## lint and every test, as CI runs them
	@scripts/test

short: ## the tests that need no Postgres, Redis or cells
	@scripts/test --short

lint: ## gofmt, vet, staticcheck, errcheck, shellcheck
	@scripts/lint
