-- +goose Up
-- Settings are open to everybody, so what cell.enter leaves in them carries a seal: a hash, under a key that only
-- the owner reads, of the slot, the epoch and the very transaction. A slot that the application's role put into the
-- settings itself opens nothing (SL005), nor does the seal of an earlier transaction.

CREATE TABLE cell.seal_key (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  key text    NOT NULL
);
INSERT INTO cell.seal_key (key) VALUES (gen_random_uuid()::text || gen_random_uuid()::text);

-- +goose StatementBegin
CREATE FUNCTION cell.seal(p_slot text, p_epoch text) RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- The backend and the start of its transaction, in a form that no setting changes, name the transaction.
  RETURN (SELECT encode(sha256(convert_to(concat_ws(' ', k.key, pg_backend_pid(), extract(epoch FROM now()), p_slot, p_epoch), 'UTF8')), 'hex')
          FROM cell.seal_key k);
END $$;
-- +goose StatementEnd

-- As before, and sealed.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.enter(p_slot int, p_epoch bigint, p_user bigint DEFAULT 0) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was text := coalesce(current_setting('cell.slot', true), '');
  f   cell.forwards;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL007', MESSAGE = 'a slot is entered under READ COMMITTED only';
  END IF;
  IF was <> '' AND was <> p_slot::text THEN
    RAISE EXCEPTION USING ERRCODE = 'SL006', MESSAGE = format('slot %s in a transaction of slot %s', p_slot, was);
  END IF;
  PERFORM pg_advisory_xact_lock_shared(4401, p_slot);
  PERFORM cell.check_owner(p_slot, p_epoch, 3000);
  IF p_user <> 0 THEN
    SELECT * INTO f FROM cell.forwards WHERE slot = p_slot AND user_id = p_user;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'SL008', MESSAGE = format('user %s was moved alone', p_user),
        DETAIL = json_build_object('owner', f.to_cell, 'epoch', 1, 'slot', f.private_slot)::text;
    END IF;
  END IF;
  PERFORM set_config('cell.slot', p_slot::text, true), set_config('cell.epoch', p_epoch::text, true),
    set_config('cell.seal', cell.seal(p_slot::text, p_epoch::text), true);
END $$;
-- +goose StatementEnd

-- Before each writing statement: raises even where no row would match.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.must_enter() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE s text := coalesce(current_setting('cell.slot', true), '');
BEGIN
  IF s = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = format('a write to %s without cell.enter', TG_RELID::regclass);
  END IF;
  IF coalesce(current_setting('cell.seal', true), '') <> cell.seal(s, current_setting('cell.epoch', true)) THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = format('a write to %s under settings that cell.enter did not make', TG_RELID::regclass);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- A trigger function that runs with its owner's rights is nobody's to put on a table of their own.
REVOKE ALL ON FUNCTION cell.note_relay(), cell.must_enter(), cell.seal(text, text) FROM PUBLIC;
