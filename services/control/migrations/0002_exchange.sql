-- +goose Up
-- Exchanges of standbys: which slots are to get which standby, part by part, and how far each is. A part is all slots of
-- one owner that go to one cell. States:
--   PLANNED     nothing was asked of anybody
--   COPYING     the owner has the target as incoming since (incarnation, lsn) of its WAL; the target copies
--   SWITCHED    table `version`, stored in the same transaction, names the target as standby
--   DONE        the owner has that table, and let go of the old standby
--   CANCELLING  the owner is to let go of the target
--   CANCELLED
CREATE TABLE control.exchanges (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reason     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE control.exchange_parts (
    exchange    bigint      NOT NULL REFERENCES control.exchanges,
    part        int         NOT NULL,
    owner       text        NOT NULL,
    target      text        NOT NULL,
    slots       int[]       NOT NULL,
    epochs      bigint[]    NOT NULL CHECK (cardinality(epochs) = cardinality(slots)),
    state       text        NOT NULL DEFAULT 'PLANNED' CHECK (state IN ('PLANNED', 'COPYING', 'SWITCHED', 'DONE', 'CANCELLING', 'CANCELLED')),
    incarnation text        NOT NULL DEFAULT '',
    lsn         pg_lsn      NOT NULL DEFAULT '0/0',
    version     bigint      NOT NULL DEFAULT 0,
    detail      text        NOT NULL DEFAULT '',   -- what it waits for, or why it ended
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    looked_at   timestamptz,                       -- when the detail was found
    PRIMARY KEY (exchange, part),
    CHECK (owner <> target)
);
CREATE INDEX exchange_parts_open ON control.exchange_parts (exchange, part) WHERE state NOT IN ('DONE', 'CANCELLED');

GRANT SELECT, INSERT ON control.exchanges TO cellmart_app;
GRANT SELECT, INSERT, UPDATE ON control.exchange_parts TO cellmart_app;
