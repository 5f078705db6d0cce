-- +goose Up
-- Who takes changes. An attached sink counts for what is confirmed to Postgres; a detached one is sent nothing
-- before it asks for a copy.
CREATE TABLE cdc.sinks (
  sink   text        PRIMARY KEY,
  state  text        NOT NULL CHECK (state IN ('attached', 'detached')),
  reason text        NOT NULL DEFAULT '', -- why it is detached
  since  timestamptz NOT NULL DEFAULT now(),
  stored pg_lsn                           -- what it has said that it stored, as of the last look
);

-- What was decoded up to a position and is needed to go on there: which cell each slot's changes go to, and the
-- columns of each table. Written before a position behind it is confirmed; kept as far back as the server may
-- go after a crash (its restart_lsn).
CREATE TABLE cdc.maps (
  lsn     pg_lsn      PRIMARY KEY,
  slots   bytea       NOT NULL,
  columns jsonb       NOT NULL,
  at      timestamptz NOT NULL DEFAULT now()
);

-- Copies of some slots queue; one of everything takes their place.
ALTER TABLE cdc.copies ADD COLUMN slots int[];
ALTER TABLE cdc.copies DROP CONSTRAINT copies_pkey;
ALTER TABLE cdc.copies ADD PRIMARY KEY (sink, id);

GRANT SELECT, INSERT, UPDATE, DELETE ON cdc.sinks, cdc.maps, cdc.copies TO cellmart_agent;
