-- +goose Up
-- The fence (P1): who owns a slot, and the functions that every transaction passes.
-- SQLSTATEs: SL001 not the owner here, SL002 other epoch, SL003 draining or given, SL004 lease over,
-- SL005 nothing entered, SL006 a second slot, SL007 isolation level, SL008 user forwarded,
-- SL009 lease over after COMMIT (outcome unknown), SL010 other cell's database.

CREATE TABLE cell.identity (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  cell        text NOT NULL,
  ordinal     int  NOT NULL CHECK (ordinal BETWEEN 0 AND 31),  -- 0 = the global zone; five bits, never reused
  incarnation uuid NOT NULL DEFAULT gen_random_uuid(),
  created_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE cell.slots (
  slot       int    PRIMARY KEY CHECK (slot >= 0),
  epoch      bigint NOT NULL CHECK (epoch >= 1),
  owner      text   NOT NULL,
  standby    text,
  role       text   NOT NULL CHECK (role IN ('owner', 'standby', 'incoming', 'none')),
  state      text   NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'draining', 'given')),
  given_to   text   CHECK ((state = 'given') = (given_to IS NOT NULL)),
  changed_at timestamptz NOT NULL DEFAULT now()
);

-- The table that cell.slots was last brought to, whole and signed, so that the cell can hand it on.
CREATE TABLE cell.route (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  version    bigint NOT NULL,
  signed     bytea  NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);

-- Users who were moved alone (P8). Rows are never removed.
CREATE TABLE cell.forwards (
  slot         int    NOT NULL,
  user_id      bigint NOT NULL,
  private_slot int    NOT NULL,
  to_cell      text   NOT NULL,
  PRIMARY KEY (slot, user_id)
);

-- Ends in milliseconds of boot time; 'infinity' until leases exist. Void when the postmaster or the
-- boot differs from the pair it was written in (P2.1): wall times are never compared.
CREATE TABLE cell.lease (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  ends_ms    float8      NOT NULL,
  postmaster timestamptz NOT NULL,
  boot_id    text        NOT NULL,
  counter    bigint      NOT NULL DEFAULT 0
);

-- Every table of unit data, for copies, checks and clean-up.
CREATE TABLE cell.unit_tables (name text PRIMARY KEY);

-- +goose StatementBegin
CREATE FUNCTION cell.boot_ms() RETURNS float8
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT split_part(pg_read_file('/proc/uptime'), ' ', 1)::float8 * 1000 $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION cell.boot_id() RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT trim(E'\n' FROM pg_read_file('/proc/sys/kernel/random/boot_id')) $$;
-- +goose StatementEnd

-- Milliseconds of lease left; 0 when there is none or it is void.
-- +goose StatementBegin
CREATE FUNCTION cell.lease_left_ms() RETURNS float8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE l cell.lease;
BEGIN
  SELECT * INTO l FROM cell.lease;
  IF NOT FOUND OR l.postmaster <> pg_postmaster_start_time() THEN RETURN 0; END IF;
  IF l.ends_ms = 'infinity' THEN RETURN 'infinity'; END IF;
  IF l.boot_id <> cell.boot_id() THEN RETURN 0; END IF;
  RETURN greatest(l.ends_ms - cell.boot_ms(), 0);
END $$;
-- +goose StatementEnd

-- The check that enter and leave share. The caller holds the slot's lock, and this statement's
-- snapshot is younger than the lock: READ COMMITTED, volatile function, statement of its own.
-- +goose StatementBegin
CREATE FUNCTION cell.check_owner(p_slot int, p_epoch bigint, p_margin_ms float8) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE s cell.slots;
BEGIN
  SELECT * INTO s FROM cell.slots WHERE slot = p_slot;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s is not known here', p_slot);
  END IF;
  IF s.state = 'given' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL003', MESSAGE = format('slot %s was given away', p_slot),
      DETAIL = json_build_object('owner', s.given_to, 'epoch', s.epoch + 1)::text;
  END IF;
  IF s.role <> 'owner' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s has another owner', p_slot),
      DETAIL = json_build_object('owner', s.owner, 'epoch', s.epoch)::text;
  END IF;
  IF s.epoch <> p_epoch THEN
    RAISE EXCEPTION USING ERRCODE = 'SL002', MESSAGE = format('slot %s is at another epoch than %s', p_slot, p_epoch),
      DETAIL = json_build_object('owner', s.owner, 'epoch', s.epoch)::text;
  END IF;
  IF s.state <> 'active' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL003', MESSAGE = format('slot %s is draining', p_slot),
      DETAIL = json_build_object('owner', s.owner, 'epoch', s.epoch)::text;
  END IF;
  IF NOT cell.lease_left_ms() > p_margin_ms THEN
    RAISE EXCEPTION USING ERRCODE = 'SL004', MESSAGE = 'this cell''s lease is over';
  END IF;
END $$;
-- +goose StatementEnd

-- The first statement of each write transaction. The settings it leaves are transaction-local.
-- +goose StatementBegin
CREATE FUNCTION cell.enter(p_slot int, p_epoch bigint, p_user bigint DEFAULT 0) RETURNS void
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
  PERFORM set_config('cell.slot', p_slot::text, true), set_config('cell.epoch', p_epoch::text, true);
END $$;
-- +goose StatementEnd

-- The last statement before COMMIT: the same check, without the margin.
-- +goose StatementBegin
CREATE FUNCTION cell.leave() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE s text := coalesce(current_setting('cell.slot', true), '');
BEGIN
  IF s = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = 'no slot was entered';
  END IF;
  PERFORM cell.check_owner(s::int, current_setting('cell.epoch')::bigint, 0);
END $$;
-- +goose StatementEnd

-- Right after COMMIT, in its batch: nobody is told of a commit that the lease didn't outlive.
-- +goose StatementBegin
CREATE FUNCTION cell.committed() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT cell.lease_left_ms() > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'SL009', MESSAGE = 'the lease ended around the commit';
  END IF;
END $$;
-- +goose StatementEnd

-- Reads: true when what is read may be stale (standby, or lease over), an error when the slot isn't here.
-- +goose StatementBegin
CREATE FUNCTION cell.see(p_slot int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE s cell.slots;
BEGIN
  SELECT * INTO s FROM cell.slots WHERE slot = p_slot;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s is not known here', p_slot);
  END IF;
  IF s.role = 'owner' AND s.state <> 'given' THEN
    RETURN NOT cell.lease_left_ms() > 0;
  END IF;
  IF s.role = 'standby' THEN RETURN true; END IF;
  RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s has another owner', p_slot),
    DETAIL = json_build_object('owner', coalesce(s.given_to, s.owner),
      'epoch', s.epoch + (s.state = 'given')::int)::text;
END $$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION cell.require(p_cell text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE c text;
BEGIN
  SELECT cell INTO c FROM cell.identity;
  IF c IS DISTINCT FROM p_cell THEN
    RAISE EXCEPTION USING ERRCODE = 'SL010',
      MESSAGE = format('this database belongs to %s, not to %s', coalesce(c, 'no cell'), p_cell);
  END IF;
END $$;
-- +goose StatementEnd

-- Raised by the policies. An UPDATE that silently hit 0 rows would be taken for "somebody did it".
-- +goose StatementBegin
CREATE FUNCTION cell.refuse(p_slot int) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE s text := coalesce(current_setting('cell.slot', true), '');
BEGIN
  IF s = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = 'a write without cell.enter';
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'SL006', MESSAGE = format('a write to slot %s in a transaction of slot %s', p_slot, s);
END $$;
-- +goose StatementEnd

-- Before each writing statement: raises even where no row would match.
-- +goose StatementBegin
CREATE FUNCTION cell.must_enter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF coalesce(current_setting('cell.slot', true), '') = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = format('a write to %s without cell.enter', TG_RELID::regclass);
  END IF;
  RETURN NULL;
END $$;
-- +goose StatementEnd

-- Sets epoch and rev: rev goes on for ever, whatever the statement says.
-- +goose StatementBegin
CREATE FUNCTION cell.stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF NEW.slot <> OLD.slot THEN
      RAISE EXCEPTION USING ERRCODE = 'SL006', MESSAGE = 'a row never changes its slot';
    END IF;
    NEW.rev := OLD.rev + 1;
  ELSE
    NEW.rev := 1;
  END IF;
  NEW.epoch := current_setting('cell.epoch')::bigint;
  RETURN NEW;
END $$;
-- +goose StatementEnd

-- Makes a table a unit table: row-level security for writes, epoch and rev by trigger, grants. Its primary
-- and unique keys must start with slot, and it may have no identity or serial column (R6).
-- +goose StatementBegin
CREATE FUNCTION cell.unit_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$
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
END $$;
-- +goose StatementEnd

-- The agent's side. A lease for the postmaster that runs now, ending at that boot time.
-- +goose StatementBegin
CREATE FUNCTION cell.set_lease(p_ends_ms float8) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO cell.lease (ends_ms, postmaster, boot_id)
  VALUES (p_ends_ms, pg_postmaster_start_time(), cell.boot_id())
  ON CONFLICT (one) DO UPDATE SET ends_ms = excluded.ends_ms, postmaster = excluded.postmaster, boot_id = excluded.boot_id
$$;
-- +goose StatementEnd

-- Brings cell.slots to a published table, in one transaction with its version. Only slots whose epoch there
-- is above the local one change (an equal epoch never changes an owner; given counts as epoch + 1); each
-- under its exclusive lock, ascending, so nobody is inside when the owner changes. Returns how many slots
-- changed.
-- +goose StatementBegin
CREATE FUNCTION cell.apply_table(p_version bigint, p_signed bytea, p_slots int[], p_owners text[], p_standbys text[], p_epochs bigint[])
RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me   text := (SELECT cell FROM cell.identity);
  n    int;
  have bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(4402);
  SELECT version INTO have FROM cell.route;
  IF have >= p_version THEN RETURN 0; END IF;
  PERFORM pg_advisory_xact_lock(4401, t.slot)
    FROM (SELECT u.slot FROM unnest(p_slots, p_epochs) AS u(slot, epoch)
          JOIN cell.slots s ON s.slot = u.slot AND u.epoch > s.epoch + (s.state = 'given')::int
          ORDER BY u.slot) t;
  INSERT INTO cell.slots AS s (slot, epoch, owner, standby, role)
    SELECT u.slot, u.epoch, u.owner, nullif(u.standby, ''),
           CASE me WHEN u.owner THEN 'owner' WHEN nullif(u.standby, '') THEN 'standby' ELSE 'none' END
    FROM unnest(p_slots, p_owners, p_standbys, p_epochs) AS u(slot, owner, standby, epoch)
    ORDER BY u.slot
    ON CONFLICT (slot) DO UPDATE
      SET epoch = excluded.epoch, owner = excluded.owner, standby = excluded.standby, role = excluded.role,
          state = 'active', given_to = NULL, changed_at = now()
      WHERE excluded.epoch > s.epoch + (s.state = 'given')::int;
  GET DIAGNOSTICS n = ROW_COUNT;
  INSERT INTO cell.route (version, signed) VALUES (p_version, p_signed)
    ON CONFLICT (one) DO UPDATE SET version = excluded.version, signed = excluded.signed, applied_at = now();
  RETURN n;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.set_lease(float8), cell.apply_table(bigint, bytea, int[], text[], text[], bigint[]),
  cell.boot_ms(), cell.boot_id(), cell.check_owner(int, bigint, float8), cell.unit_table(regclass) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.set_lease(float8), cell.apply_table(bigint, bytea, int[], text[], text[], bigint[]),
  cell.boot_ms(), cell.boot_id() TO cellmart_agent;
GRANT SELECT ON cell.identity, cell.slots, cell.route, cell.lease, cell.unit_tables, cell.forwards
  TO cellmart_app, cellmart_agent, cellmart_applier;
