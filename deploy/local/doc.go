// Package local runs the demo as processes of this machine: the same cells, the
// same binary and the same links as in Compose, without an engine.
//
//	zone global   postgres, postgres (idgen's own), nats, agent, control, idgen, catalog-writer
//	zone cK       postgres, redis, nats, agent, gateway, user, order, inventory, catalog
//	no zone       edge
//
// Up makes keys and certificates, starts the databases, migrates them, starts
// the services and waits until each says it is ready. Everything that it made is
// in one folder and one state file (mode 0600), which cellctl and the e2e tests
// read; Down ends every process by its id (and start time, so that a reused id is
// never hit) and removes the folder.
//
//	what                                 then
//	port busy, program missing           one line, nothing was started
//	process dies while starting          its last log lines, all is ended again
//	Up on a running demo                 what is missing is started
//	Up after a crash of this program     the state file is written before each start
//	run by root                          Postgres runs as the user postgres
package local
