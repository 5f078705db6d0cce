-- +goose Up
-- Who is logged in for longer than a token lives. A user has a few seats, and a login takes one: rows don't pile up.
-- The refresh token isn't kept: it is a MAC over the seat's family and how often it was exchanged.
CREATE TABLE users.sessions (
  slot       int         NOT NULL,
  epoch      bigint      NOT NULL,
  rev        bigint      NOT NULL,
  user_id    bigint      NOT NULL,
  seat       smallint    NOT NULL CHECK (seat BETWEEN 0 AND 9),
  family     bigint      NOT NULL,  -- of the login that has the seat, at random
  turn       int         NOT NULL DEFAULT 0,
  turned_at  timestamptz NOT NULL,
  ends_at    timestamptz NOT NULL,
  ended_at   timestamptz,           -- logged out, or a token came twice
  PRIMARY KEY (slot, user_id, seat)
);
SELECT cell.unit_table('users.sessions');

-- Tokens issued up to then are refused. The row is at the home and at its standby, and no other cell answers for the user.
ALTER TABLE users.users ADD COLUMN denied_until timestamptz;
CREATE INDEX users_denied ON users.users (denied_until) WHERE denied_until IS NOT NULL;
