-- +goose Up
-- One row per published route table, whole and as it was signed. Rows are never
-- changed or deleted, and the application's role has no right to.
CREATE TABLE control.route_versions (
    version    bigint      PRIMARY KEY CHECK (version >= 1),
    signed     bytea       NOT NULL,
    reason     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

GRANT SELECT, INSERT ON control.route_versions TO cellmart_app;
