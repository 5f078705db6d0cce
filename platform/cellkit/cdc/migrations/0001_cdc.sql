-- +goose Up
-- What the relay knows of its slot, written before the slot is made: one that is here as made, and isn't on the
-- server, has lost changes. declared = the sinks were told.
CREATE TABLE cdc.slot (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  name       text        NOT NULL,
  state      text        NOT NULL CHECK (state IN ('making', 'made', 'lost')),
  declared   boolean     NOT NULL DEFAULT true,
  reason     text        NOT NULL DEFAULT '', -- of the last loss
  losses     int         NOT NULL DEFAULT 0,
  changed_at timestamptz NOT NULL DEFAULT now()
);

-- The last copy that each sink asked for. An attempt that was broken off begins again.
CREATE TABLE cdc.copies (
  sink     text        PRIMARY KEY,
  id       text        NOT NULL,
  attempt  int         NOT NULL DEFAULT 0,
  state    text        NOT NULL CHECK (state IN ('asked', 'running', 'done')),
  reason   text        NOT NULL DEFAULT '',
  rows     bigint      NOT NULL DEFAULT 0,
  asked_at timestamptz NOT NULL DEFAULT now(),
  done_at  timestamptz
);

GRANT SELECT, INSERT, UPDATE ON cdc.slot, cdc.copies TO cellmart_agent;
