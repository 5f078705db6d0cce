-- +goose Up
-- Both sides of a transfer compared hour by hour: the hour of its beginning, which the CREDIT carries to the payee.

-- When the payer's side began it, by the payer's database. NULL: a message from before it was carried; then the row's own
-- time is the best guess, and an hour that differs for it is looked into by ID, which finds nothing.
ALTER TABLE cell.credits ADD COLUMN begun_at timestamptz;

-- An hour is found by these, which cost an insert next to nothing: rows lie about in the order of their times.
CREATE INDEX transfers_by_time ON cell.transfers USING brin (created_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE INDEX credits_by_time ON cell.credits USING brin (coalesce(begun_at, created_at)) WITH (pages_per_range = 32, autosummarize = on);

-- What both sides must say of a transfer, in 64 bits.
-- +goose StatementBegin
CREATE FUNCTION cell.transfer_hash(id bigint, amount bigint, currency text, from_user bigint, to_user bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN hashtextextended(id::text || ' ' || amount::text || ' ' || currency || ' ' || from_user::text || ' ' || to_user::text, 0);
-- +goose StatementEnd
