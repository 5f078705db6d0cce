-- +goose Up
-- Standby copies (P3.4-7): what another cell owns and this one keeps a copy of, how far that copy is, and the one role
-- that may write such rows.

-- The cell that is to become the slot's standby and is being brought there (P4.2). Set by the owner.
ALTER TABLE cell.slots ADD COLUMN incoming text;

-- How far this cell is with each source: the follower's position, written in the transaction of the rows. Written with
-- synchronous_commit on, so who can read it can rely on it (P3.5).
CREATE TABLE cell.watermarks (
  source      text        PRIMARY KEY,
  position    jsonb       NOT NULL,                   -- as the follower needs it
  incarnation text        NOT NULL,                   -- of the source's database; two can't be compared
  lsn         pg_lsn      NOT NULL,
  at          timestamptz,                            -- of the newest commit applied, by the source's clock
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What is known of each copy. It holds only for the owner and epoch that it names: see cell.standing_by.
CREATE TABLE cell.standby_slots (
  slot     int         PRIMARY KEY,
  source   text        NOT NULL,
  epoch    bigint      NOT NULL,
  state    text        NOT NULL CHECK (state IN ('copying', 'in_sync', 'stopped')),
  reason   text        NOT NULL DEFAULT '',
  copy     text        NOT NULL DEFAULT '',           -- the copy that is taken, with its attempt
  copy_n   int         NOT NULL DEFAULT 0,            -- its messages so far
  covered  boolean     NOT NULL DEFAULT false,        -- the copy has said that it covers this slot at this epoch
  copy_end pg_lsn,                                    -- what the stream must have passed; NULL before the copy's end
  fresh    boolean     NOT NULL DEFAULT false,        -- the next copy replaces whatever is here
  tries    int         NOT NULL DEFAULT 0,            -- copies in a row that came to nothing
  since    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX standby_slots_copying ON cell.standby_slots (source) WHERE state <> 'in_sync';

-- Chunks of a transaction whose end hasn't come: all of them are applied, or none.
CREATE TABLE cell.standby_chunks (
  source text  NOT NULL,
  chunk  int   NOT NULL,
  slots  int[] NOT NULL,
  body   bytea NOT NULL,
  PRIMARY KEY (source, chunk)
);

-- Changes that leave out a large value, of rows that the running copy hasn't brought yet. Applied at its end.
CREATE TABLE cell.standby_pending (
  slot   int    NOT NULL,
  seq    bigint GENERATED ALWAYS AS IDENTITY,
  base   bigint NOT NULL,                             -- the rev that what is left out is of
  body   bytea  NOT NULL,
  PRIMARY KEY (slot, seq)
);

-- Where this cell was with the source when it became the owner of a slot it stood by for.
CREATE TABLE cell.promotions (
  slot        int         NOT NULL,
  epoch       bigint      NOT NULL,                   -- the new one
  source      text        NOT NULL,
  state       text        NOT NULL,                   -- of the copy: in_sync, or what was missing
  incarnation text,
  lsn         pg_lsn,                                 -- NULL = nothing was ever applied
  position    jsonb,
  at          timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (slot, epoch)
);

-- The slots that this cell keeps a copy of, and whether the copy can be relied on.
CREATE VIEW cell.standing_by AS
  SELECT s.slot, s.owner AS source, s.epoch, s.role,
         CASE WHEN p.source = s.owner AND p.epoch = s.epoch OR p.state = 'stopped' AND p.epoch > s.epoch THEN p.state ELSE 'copying' END AS state,
         CASE WHEN p.source = s.owner AND p.epoch = s.epoch OR p.state = 'stopped' AND p.epoch > s.epoch THEN p.reason ELSE 'not copied yet' END AS reason,
         CASE WHEN p.source = s.owner AND p.epoch = s.epoch THEN p.since ELSE s.changed_at END AS since
  FROM cell.slots s LEFT JOIN cell.standby_slots p ON p.slot = s.slot
  WHERE s.role IN ('standby', 'incoming');

GRANT SELECT ON cell.watermarks, cell.standby_slots, cell.promotions, cell.standing_by TO cellmart_app, cellmart_agent, cellmart_applier;
GRANT SELECT, INSERT, UPDATE, DELETE ON cell.watermarks, cell.standby_slots, cell.standby_chunks, cell.standby_pending TO cellmart_applier;
GRANT SELECT ON cell.unit_tables, cell.lease TO cellmart_applier;

-- The applier enters too: shared lock on each slot (exclusive where the slot's row itself is to change), ascending;
-- then, as a statement of its own, what this cell is to them. It refuses nothing: the policies do. The applier's
-- session fires no triggers, or they would stamp the rows anew and send the outbox once more.
-- +goose StatementBegin
CREATE FUNCTION cell.enter_applier(p_slots int[], p_exclusive int[] DEFAULT '{}')
RETURNS TABLE (slot int, role text, epoch bigint, owner text, source text, copied_epoch bigint, state text, copy text, copy_n int, covered boolean, fresh boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  n   int;
  own boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL007', MESSAGE = 'a slot is entered under READ COMMITTED only';
  END IF;
  IF current_setting('session_replication_role') <> 'replica' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = 'the applier''s session must have session_replication_role = replica';
  END IF;
  FOR n, own IN SELECT u.n, u.n = ANY (p_exclusive) FROM unnest(p_slots || p_exclusive) AS u(n) GROUP BY u.n ORDER BY u.n LOOP
    IF own THEN
      PERFORM pg_advisory_xact_lock(4401, n);
    ELSE
      PERFORM pg_advisory_xact_lock_shared(4401, n);
    END IF;
  END LOOP;
  -- No slot has this name: the policies of the application's role never match it.
  PERFORM set_config('cell.slot', 'applier', true), set_config('cell.epoch', '0', true),
    set_config('cell.seal', cell.seal('applier', '0'), true);
  RETURN QUERY SELECT s.slot, s.role, s.epoch, s.owner, coalesce(p.source, ''), coalesce(p.epoch, 0), coalesce(p.state, ''),
      coalesce(p.copy, ''), coalesce(p.copy_n, 0), coalesce(p.covered, false), coalesce(p.fresh, false)
    FROM (SELECT u.n FROM unnest(p_slots || p_exclusive) AS u(n) GROUP BY u.n) t
    JOIN cell.slots s ON s.slot = t.n LEFT JOIN cell.standby_slots p ON p.slot = t.n;
END $$;
-- +goose StatementEnd

-- Raised by the applier's policies.
-- +goose StatementBegin
CREATE FUNCTION cell.refuse_applier(p_slot int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('this cell isn''t slot %s''s standby', p_slot);
END $$;
-- +goose StatementEnd

-- A followed table is never emptied at once: no sink could tell which rows went.
-- +goose StatementBegin
CREATE FUNCTION cell.no_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = '0A000', MESSAGE = format('%s is followed by other cells: it can''t be truncated', TG_RELID::regclass);
END $$;
-- +goose StatementEnd

-- The applier's rights to a unit table: rows of slots that this cell stands by for; those of an owner never. Rows that
-- are nobody's here any more may only go. What is looked at to be changed is judged without raising: a plan may look at
-- every row of the table, also those that no other condition of the statement holds for.
-- +goose StatementBegin
CREATE FUNCTION cell.applier_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  name text := (SELECT quote_ident(relname) FROM pg_class WHERE oid = t);
  ok   text := 'CASE WHEN (SELECT s.role FROM cell.slots s WHERE s.slot = ' || name || '.slot) IN (''standby'', ''incoming'') THEN true ELSE cell.refuse_applier(slot) END';
  role text := '(SELECT s.role FROM cell.slots s WHERE s.slot = ' || name || '.slot)';
BEGIN
  EXECUTE format('CREATE POLICY insert_applied ON %s FOR INSERT TO cellmart_applier WITH CHECK (%s)', t, ok);
  EXECUTE format('CREATE POLICY update_applied ON %s FOR UPDATE TO cellmart_applier USING (%s IN (''standby'', ''incoming'')) WITH CHECK (%s)', t, role, ok);
  EXECUTE format('CREATE POLICY delete_applied ON %s FOR DELETE TO cellmart_applier USING (coalesce(%s, ''none'') <> ''owner'')', t, role);
  -- Besides the administrator nobody else can be in a session that fires no triggers.
  EXECUTE format('CREATE TRIGGER a_must_enter_too BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT WHEN (current_user = ''cellmart_applier'') EXECUTE FUNCTION cell.must_enter()', t);
  EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER a_must_enter_too', t);
  EXECUTE format('CREATE TRIGGER a_no_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cell.no_truncate()', t);
  EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO cellmart_applier', t);
  EXECUTE format('GRANT USAGE ON SCHEMA %s TO cellmart_applier', (SELECT relnamespace::regnamespace FROM pg_class WHERE oid = t));
END $$;
-- +goose StatementEnd

-- As before, and with the applier's rights.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.unit_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  ok  text := 'CASE WHEN slot::text = current_setting(''cell.slot'', true) THEN true ELSE cell.refuse(slot) END';
  bad text;
BEGIN
  IF (SELECT count(*) FROM pg_attribute WHERE attrelid = t AND NOT attisdropped AND attnotnull
        AND (attname, atttypid::regtype::text) IN (('slot', 'integer'), ('epoch', 'bigint'), ('rev', 'bigint'))) <> 3 THEN
    RAISE EXCEPTION '% needs slot int, epoch bigint and rev bigint, all NOT NULL', t;
  END IF;
  SELECT string_agg(indexrelid::regclass::text, ', ') INTO bad FROM pg_index i
    WHERE indrelid = t AND indisunique
      AND (SELECT attname FROM pg_attribute WHERE attrelid = t AND attnum = i.indkey[0]) IS DISTINCT FROM 'slot';
  IF bad IS NOT NULL OR NOT EXISTS (SELECT FROM pg_index WHERE indrelid = t AND indisprimary) THEN
    RAISE EXCEPTION 'the primary and unique keys of % must start with slot: %', t, bad;
  END IF;
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = t AND NOT attisdropped
      AND (attidentity <> '' OR pg_get_serial_sequence(t::text, attname) IS NOT NULL)) THEN
    RAISE EXCEPTION '% may have no identity or serial column', t;
  END IF;
  EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', t);
  EXECUTE format('CREATE POLICY see_all ON %s FOR SELECT USING (true)', t);
  EXECUTE format('CREATE POLICY insert_entered ON %s FOR INSERT TO cellmart_app WITH CHECK (%s)', t, ok);
  EXECUTE format('CREATE POLICY update_entered ON %s FOR UPDATE TO cellmart_app USING (%s) WITH CHECK (%s)', t, ok, ok);
  EXECUTE format('CREATE TRIGGER a_must_enter BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH STATEMENT EXECUTE FUNCTION cell.must_enter()', t);
  EXECUTE format('CREATE TRIGGER b_stamp BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION cell.stamp()', t);
  EXECUTE format('GRANT SELECT, INSERT, UPDATE ON %s TO cellmart_app', t);
  EXECUTE format('GRANT SELECT ON %s TO cellmart_agent', t);
  INSERT INTO cell.unit_tables VALUES (t::text) ON CONFLICT DO NOTHING;
  PERFORM cell.applier_table(t);
END $$;
-- +goose StatementEnd

SELECT cell.applier_table(name::regclass) FROM cell.unit_tables;

-- What an owner says of a slot in its stream: brings the local row there, with the slot's exclusive lock held (see
-- enter_applier). A slot owned here stays; so does one that the source has at an older epoch; nobody becomes an owner
-- by it: that takes the table, or a promotion. At an equal epoch only the owner's word counts. Returns whether the row
-- now says what the source says.
-- +goose StatementBegin
CREATE FUNCTION cell.follow_slot(p_source text, p_slot int, p_epoch bigint, p_owner text, p_standby text, p_incoming text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me   text := (SELECT cell FROM cell.identity);
  have cell.slots;
  r    text := CASE me WHEN p_standby THEN 'standby' WHEN p_incoming THEN 'incoming' ELSE 'none' END;
BEGIN
  SELECT * INTO have FROM cell.slots WHERE slot = p_slot;
  IF NOT FOUND THEN
    IF p_owner = me THEN RETURN false; END IF;
    INSERT INTO cell.slots (slot, epoch, owner, standby, incoming, role) VALUES (p_slot, p_epoch, p_owner, p_standby, p_incoming, r);
    RETURN true;
  END IF;
  IF have.role = 'owner' OR p_owner = me OR p_epoch < have.epoch
     OR p_epoch = have.epoch AND (p_owner <> p_source OR have.owner <> p_source) THEN
    RETURN false;
  END IF;
  IF (have.epoch, have.owner, have.role) = (p_epoch, p_owner, r)
     AND have.standby IS NOT DISTINCT FROM p_standby AND have.incoming IS NOT DISTINCT FROM p_incoming THEN
    RETURN true;
  END IF;
  UPDATE cell.slots SET epoch = p_epoch, owner = p_owner, standby = p_standby, incoming = p_incoming, role = r,
      state = 'active', given_to = NULL, changed_at = now()
    WHERE slot = p_slot;
  RETURN true;
END $$;
-- +goose StatementEnd

-- "Relayed" is a cell's own note (P4.4): a new owner sends every open request again. Returns how many.
-- +goose StatementBegin
CREATE FUNCTION cell.renote_relay(p_slot int) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE n int;
BEGIN
  INSERT INTO cell.relay (slot, id) SELECT slot, id FROM cell.outbox WHERE slot = p_slot AND closed_at IS NULL AND reply_to = ''
    ON CONFLICT (slot, id) DO UPDATE SET due = now(), attempts = 0;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd

-- Whatever makes a standby the owner (a table, a promotion) does it under the exclusive lock, and leaves where it was.
-- A slot that this cell doesn't stand by for any more has no copy to be relied on, even if it comes back.
-- +goose StatementBegin
CREATE FUNCTION cell.slot_changed() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.role = 'owner' AND OLD.role IN ('standby', 'incoming') THEN
    INSERT INTO cell.promotions (slot, epoch, source, state, incarnation, lsn, position)
      SELECT NEW.slot, NEW.epoch, OLD.owner,
             coalesce((SELECT state FROM cell.standby_slots p WHERE p.slot = OLD.slot AND p.source = OLD.owner AND p.epoch = OLD.epoch), 'never copied'),
             w.incarnation, w.lsn, w.position
      FROM (SELECT 1) one LEFT JOIN cell.watermarks w ON w.source = OLD.owner
      ON CONFLICT (slot, epoch) DO NOTHING;
    PERFORM cell.renote_relay(NEW.slot);
  END IF;
  IF NEW.role NOT IN ('standby', 'incoming') THEN
    DELETE FROM cell.standby_slots WHERE slot = NEW.slot;
    DELETE FROM cell.standby_pending WHERE slot = NEW.slot;
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER slot_changed AFTER UPDATE ON cell.slots FOR EACH ROW
  WHEN (OLD.role IN ('standby', 'incoming') AND NEW.role NOT IN ('standby', 'incoming')) EXECUTE FUNCTION cell.slot_changed();

-- The applier brings slots to what their owner says, in a session that fires no other triggers.
ALTER TABLE cell.slots ENABLE ALWAYS TRIGGER slot_changed;

-- Makes this cell the owner of a slot that it stands by for, at a higher epoch (P7.4). Nothing of the old epoch is
-- applied after it: the applier holds the shared lock, and reads the epoch under it.
-- +goose StatementBegin
CREATE FUNCTION cell.promote(p_slot int, p_epoch bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE have cell.slots;
BEGIN
  PERFORM pg_advisory_xact_lock(4401, p_slot);
  SELECT * INTO have FROM cell.slots WHERE slot = p_slot;
  IF NOT FOUND OR have.role NOT IN ('standby', 'incoming') THEN
    RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('this cell isn''t slot %s''s standby', p_slot);
  END IF;
  IF p_epoch <= have.epoch THEN
    RAISE EXCEPTION USING ERRCODE = 'SL002', MESSAGE = format('slot %s is at epoch %s, not below %s', p_slot, have.epoch, p_epoch);
  END IF;
  UPDATE cell.slots SET epoch = p_epoch, owner = (SELECT cell FROM cell.identity), role = 'owner', standby = NULL, incoming = NULL,
      state = 'active', given_to = NULL, changed_at = now()
    WHERE slot = p_slot;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.enter_applier(int[], int[]), cell.applier_table(regclass), cell.unit_table(regclass),
  cell.follow_slot(text, int, bigint, text, text, text), cell.renote_relay(int), cell.slot_changed(), cell.promote(int, bigint) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.enter_applier(int[], int[]), cell.follow_slot(text, int, bigint, text, text, text) TO cellmart_applier;
GRANT EXECUTE ON FUNCTION cell.renote_relay(int), cell.promote(int, bigint) TO cellmart_agent;
