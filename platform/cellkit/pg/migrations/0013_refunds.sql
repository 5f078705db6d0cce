-- +goose Up
-- Refunds, and what operators ask of transfers.

-- Where a refund's money was taken from, so that it goes back there when the refund comes to nothing: the payee's
-- balance, or suspense if that is where the money had come to. owed: the part that an operator's reversal took from
-- recovery, since the payee hadn't got it any more. by_operator: such a reversal is neither its sender's nor the clock's
-- to ask back.
ALTER TABLE cell.transfers
  ADD COLUMN taken_from text   NOT NULL DEFAULT 'available',
  ADD COLUMN owed       bigint NOT NULL DEFAULT 0,
  ADD COLUMN by_operator boolean NOT NULL DEFAULT false,
  ADD CONSTRAINT transfers_taken_from CHECK (taken_from = 'available' OR taken_from = 'suspense' AND kind = 'refund'),
  ADD CONSTRAINT transfers_owed CHECK (owed = 0 OR owed BETWEEN 1 AND amount AND by_operator),
  ADD CONSTRAINT transfers_by_operator CHECK (NOT by_operator OR kind = 'refund'),
  DROP CONSTRAINT transfers_self,  -- who bought from themselves can give that back to themselves
  ADD CONSTRAINT transfers_self CHECK (kind <> 'transfer' OR from_user <> to_user);
CREATE INDEX credits_by_refund ON cell.credits (slot, refund_of) WHERE refund_of <> 0;
CREATE INDEX parked_open ON cell.parked (parked_at) WHERE resolved_at IS NULL;

-- What an operator asks of a transfer, and what came of it: the cell's own note, no unit data. It is done by the service
-- that handles transfers, in one transaction with its end, so once, also when that is killed anywhere.
CREATE TABLE cell.transfer_jobs (
  id         text   PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9-]{1,64}$'),
  transfer   bigint NOT NULL,
  slot       int    NOT NULL,  -- the payer's: retry, cancel; the payee's: retry of what is parked there, reverse
  what       text   NOT NULL CHECK (what IN ('retry', 'cancel', 'reverse')),
  reason     text   NOT NULL CHECK (reason <> ''),
  state      text   NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'DONE', 'FAILED')),
  detail     text   NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  ended_at   timestamptz CHECK ((state = 'OPEN') = (ended_at IS NULL))
);
CREATE INDEX transfer_jobs_open ON cell.transfer_jobs (created_at) WHERE state = 'OPEN';
CREATE INDEX transfer_jobs_of   ON cell.transfer_jobs (transfer);
GRANT SELECT, INSERT ON cell.transfer_jobs TO cellmart_agent;
GRANT SELECT, UPDATE ON cell.transfer_jobs TO cellmart_app;

-- Has the open ones of some requests of a slot sent again now, also one that has lost its note. It gives how many.
-- +goose StatementBegin
CREATE FUNCTION cell.ask_again(p_slot int, p_ids text[]) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE n int;
BEGIN
  INSERT INTO cell.relay (slot, id) SELECT slot, id FROM cell.outbox WHERE slot = p_slot AND id = ANY (p_ids) AND closed_at IS NULL AND reply_to = ''
    ON CONFLICT (slot, id) DO UPDATE SET due = now();
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.ask_again(int, text[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.ask_again(int, text[]) TO cellmart_app;
