-- +goose Up
-- Who may use the console. The first one is made at the first start.
CREATE TABLE console.operators (
    name       text        PRIMARY KEY,
    hash       text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
GRANT SELECT, INSERT ON console.operators TO cellmart_app;
GRANT UPDATE (hash) ON console.operators TO cellmart_app;

-- A session is known by the SHA-256 of its token, so that reading this table signs nobody in.
CREATE TABLE console.sessions (
    key        bytea       PRIMARY KEY,
    operator   text        NOT NULL REFERENCES console.operators,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ends_at    timestamptz NOT NULL,
    ended_at   timestamptz
);
GRANT SELECT, INSERT ON console.sessions TO cellmart_app;
GRANT UPDATE (ended_at) ON console.sessions TO cellmart_app;

-- What operators asked for. Stored before anything is done.
CREATE TABLE console.jobs (
    id         text        PRIMARY KEY,
    kind       text        NOT NULL,
    args       jsonb       NOT NULL,
    operator   text        NOT NULL REFERENCES console.operators,
    reason     text        NOT NULL,
    state      text        NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'DONE', 'FAILED')),
    detail     text        NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);
CREATE INDEX jobs_open ON console.jobs (created_at) WHERE state = 'OPEN';
GRANT SELECT, INSERT ON console.jobs TO cellmart_app;
GRANT UPDATE (state, detail, ended_at) ON console.jobs TO cellmart_app;

-- What happened. Rows are never changed or deleted, and the application's role has no right to.
CREATE TABLE console.events (
    seq      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    operator text        NOT NULL,
    what     text        NOT NULL,
    subject  text        NOT NULL,
    detail   text        NOT NULL
);
GRANT SELECT, INSERT ON console.events TO cellmart_app;
