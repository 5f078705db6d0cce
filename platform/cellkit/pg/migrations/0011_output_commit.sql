-- +goose Up
-- Output commit (P4, R5): what the dispatcher holds until the slot's standby has it.

-- May leave before the standby has it: only what expires by itself.
ALTER TABLE cell.outbox ADD COLUMN early boolean NOT NULL DEFAULT false;
