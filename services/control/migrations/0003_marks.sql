-- +goose Up
-- Slots whose owner has sent something on that the standby may not have (P4.3). Nobody is promoted on such a copy. An
-- owner's later mark replaces its earlier one; a lift names the newest that it lifts, so one that is late lifts nothing else.
CREATE TABLE control.marks (
    cell        text        NOT NULL,
    slot        int         NOT NULL,
    epoch       bigint      NOT NULL,
    incarnation text        NOT NULL,
    token       bigint      NOT NULL,
    since       timestamptz NOT NULL,
    marked_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (cell, slot)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON control.marks TO cellmart_app;
