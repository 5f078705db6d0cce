-- +goose Up
-- Messages between slots (P4.4-5). A message's id is its kind and business key, so the same request can't be
-- written twice.

-- Requests and replies to send. A request is open until its final reply is in; a reply is never open: it is
-- made again from the inbox when the request comes again.
CREATE TABLE cell.outbox (
  slot          int    NOT NULL,
  epoch         bigint NOT NULL,
  rev           bigint NOT NULL,
  id            text   NOT NULL,
  to_slot       int    NOT NULL,
  service       text   NOT NULL,          -- who handles it there
  kind          text   NOT NULL,
  key           text   NOT NULL,
  body          jsonb  NOT NULL,
  reply_service text   NOT NULL DEFAULT '',  -- who handles the reply here; '' = this is itself a reply
  reply_to      text   NOT NULL DEFAULT '',  -- a reply: the id of the request
  trace         text   NOT NULL DEFAULT '',
  created_at    timestamptz NOT NULL DEFAULT now(),
  closed_at     timestamptz,
  reply         jsonb,                    -- the final reply, as it came
  PRIMARY KEY (slot, id),
  CHECK ((reply_service = '') <> (reply_to = ''))
);
SELECT cell.unit_table('cell.outbox');

-- What is still to be sent, or sent again: the cell's own note beside the outbox, not unit data, never copied.
-- A new owner of a slot makes it again from the open rows.
CREATE TABLE cell.relay (
  slot     int  NOT NULL,
  id       text NOT NULL,
  due      timestamptz NOT NULL DEFAULT now(),
  attempts int  NOT NULL DEFAULT 0,
  PRIMARY KEY (slot, id)
);
CREATE INDEX relay_due ON cell.relay (due);
GRANT SELECT ON cell.relay TO cellmart_app;
GRANT SELECT, UPDATE, DELETE ON cell.relay TO cellmart_agent;

-- +goose StatementBegin
CREATE FUNCTION cell.note_relay() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO cell.relay (slot, id) VALUES (NEW.slot, NEW.id)
      ON CONFLICT (slot, id) DO UPDATE SET due = now(), attempts = 0;
  ELSIF NEW.closed_at IS NOT NULL AND OLD.closed_at IS NULL THEN
    DELETE FROM cell.relay WHERE slot = NEW.slot AND id = NEW.id;
  ELSIF NEW.reply_to <> '' THEN            -- the same reply once more
    INSERT INTO cell.relay (slot, id) VALUES (NEW.slot, NEW.id)
      ON CONFLICT (slot, id) DO UPDATE SET due = now();
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER note_relay AFTER INSERT OR UPDATE ON cell.outbox FOR EACH ROW EXECUTE FUNCTION cell.note_relay();

-- What was handled, by request: the reply given, kept as long as the data it changed.
CREATE TABLE cell.inbox (
  slot        int    NOT NULL,
  epoch       bigint NOT NULL,
  rev         bigint NOT NULL,
  from_slot   int    NOT NULL,
  id          text   NOT NULL,
  fingerprint bytea  NOT NULL,            -- of kind and body: the same id with other fields is parked
  reply_kind  text   NOT NULL DEFAULT '', -- '' = parked, no reply
  reply_body  jsonb,
  handled_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, from_slot, id)
);
SELECT cell.unit_table('cell.inbox');

-- Messages that nobody could handle: never dropped, shown with an alarm.
CREATE TABLE cell.parked (
  slot        int    NOT NULL,
  epoch       bigint NOT NULL,
  rev         bigint NOT NULL,
  from_slot   int    NOT NULL,
  id          text   NOT NULL,
  digest      text   NOT NULL,            -- of the whole message: several conflicts with one id stay apart
  reason      text   NOT NULL,
  message     jsonb  NOT NULL,
  parked_at   timestamptz NOT NULL DEFAULT now(),
  resolved_at timestamptz,
  PRIMARY KEY (slot, from_slot, id, digest)
);
SELECT cell.unit_table('cell.parked');

-- Answers by Idempotency-Key, written in the effect's own transaction. status NULL = not decided yet, ref names
-- what will decide it.
CREATE TABLE cell.idempotency (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  actor      bigint NOT NULL,
  route      text   NOT NULL,
  key        text   NOT NULL,
  hash       bytea  NOT NULL,             -- of the request's body
  ref        text   NOT NULL DEFAULT '',
  status     int,
  location   text   NOT NULL DEFAULT '',
  body       bytea,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, actor, route, key)
);
SELECT cell.unit_table('cell.idempotency');
