-- +goose Up
-- Several slots in one transaction, for messages that are handled together (P4.5): each is entered as by cell.enter, and
-- nothing in the transaction depends on their being together. Only the bus does this.

-- What the policies let through. Beside the one slot entered: many, whose slots and epochs stand in cell.epoch as
-- ',7:1,9:3,', under the same seal.
-- +goose StatementBegin
CREATE FUNCTION cell.entered_policy() RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 'CASE WHEN slot::text = current_setting(''cell.slot'', true) THEN true'
    ' WHEN current_setting(''cell.slot'', true) = ''many'' AND strpos(current_setting(''cell.epoch'', true), '','' || slot || '':'') > 0 THEN true'
    ' ELSE cell.refuse(slot) END'
$$;
-- +goose StatementEnd

-- The first statement of such a transaction. It enters those of the slots that are owned here at that epoch, active and
-- free, and gives them: a lock is never waited for while others are held, and a slot that has moved says so to who enters
-- it alone. Nor is a row waited for long, since many slots wait with it. Their statements look rows up by lists of keys, so
-- joins go by the keys in the order of the lists, which is the order of the locks too, and by their indexes even where a
-- table is small at the moment: one plan is right for a list of any length, and stays. (Not by enable_seqscan: what it puts
-- on a plan that has no other way, here that of the seal's key, has each execution of it compiled.)
-- +goose StatementBegin
CREATE FUNCTION cell.enter_many(p_slots int[], p_epochs bigint[]) RETURNS int[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  free    int[];
  entered int[];
  list    text;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL007', MESSAGE = 'a slot is entered under READ COMMITTED only';
  END IF;
  IF coalesce(current_setting('cell.slot', true), '') <> '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL006', MESSAGE = format('more slots in a transaction of slot %s', current_setting('cell.slot'));
  END IF;
  SELECT coalesce(array_agg(t.n), '{}') INTO free
    FROM (SELECT u.n FROM unnest(p_slots) AS u(n) GROUP BY u.n ORDER BY u.n) t WHERE pg_try_advisory_xact_lock_shared(4401, t.n);
  -- A statement of its own: it sees what was committed before the locks came.
  SELECT array_agg(t.slot), ',' || string_agg(t.slot || ':' || t.epoch, ',' ORDER BY t.slot) || ',' INTO entered, list
    FROM (SELECT s.slot, min(s.epoch) AS epoch FROM unnest(p_slots, p_epochs) AS u(slot, epoch) JOIN cell.slots s ON s.slot = u.slot AND s.epoch = u.epoch
          WHERE s.slot = ANY (free) AND s.role = 'owner' AND s.state = 'active' GROUP BY s.slot) t;
  IF NOT cell.lease_left_ms() > 3000 THEN
    RAISE EXCEPTION USING ERRCODE = 'SL004', MESSAGE = 'this cell''s lease is over';
  END IF;
  list := coalesce(list, ',');
  PERFORM set_config('cell.slot', 'many', true), set_config('cell.epoch', list, true), set_config('cell.seal', cell.seal('many', list), true),
    set_config('lock_timeout', '200ms', true), set_config('plan_cache_mode', 'force_generic_plan', true), set_config('random_page_cost', '0.01', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true);
  RETURN coalesce(entered, '{}');
END $$;
-- +goose StatementEnd

-- As before, and for many: the locks are held since enter_many, so no slot can have gone, but the check costs little.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.leave() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  s    text := coalesce(current_setting('cell.slot', true), '');
  lost record;
BEGIN
  IF s = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL005', MESSAGE = 'no slot was entered';
  END IF;
  IF s <> 'many' THEN
    PERFORM cell.check_owner(s::int, current_setting('cell.epoch')::bigint, 0);
    RETURN;
  END IF;
  SELECT u.slot, u.epoch INTO lost
    FROM (SELECT split_part(e, ':', 1)::int AS slot, split_part(e, ':', 2)::bigint AS epoch
          FROM unnest(string_to_array(current_setting('cell.epoch'), ',')) AS t(e) WHERE e <> '') u
    LEFT JOIN cell.slots s ON s.slot = u.slot AND s.epoch = u.epoch AND s.role = 'owner' AND s.state = 'active'
    WHERE s.slot IS NULL LIMIT 1;
  IF FOUND THEN
    PERFORM cell.check_owner(lost.slot, lost.epoch, 0);
  END IF;
  IF NOT cell.lease_left_ms() > 0 THEN
    RAISE EXCEPTION USING ERRCODE = 'SL004', MESSAGE = 'this cell''s lease is over';
  END IF;
END $$;
-- +goose StatementEnd

-- As before, and for many.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' THEN
    IF NEW.slot <> OLD.slot THEN
      RAISE EXCEPTION USING ERRCODE = 'SL006', MESSAGE = 'a row never changes its slot';
    END IF;
    NEW.rev := OLD.rev + 1;
  ELSE
    NEW.rev := 1;
  END IF;
  IF current_setting('cell.slot') = 'many' THEN
    NEW.epoch := nullif(split_part(split_part(current_setting('cell.epoch'), ',' || NEW.slot || ':', 2), ',', 1), ''); -- none: the policy refuses the row
  ELSE
    NEW.epoch := current_setting('cell.epoch');
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd

-- As before, with the wider policies.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.unit_table(t regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  ok  text := cell.entered_policy();
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

-- +goose StatementBegin
DO $$
DECLARE
  t  text;
  ok text := cell.entered_policy();
BEGIN
  FOR t IN SELECT name FROM cell.unit_tables ORDER BY name LOOP
    EXECUTE format('ALTER POLICY insert_entered ON %s WITH CHECK (%s)', t, ok);
    EXECUTE format('ALTER POLICY update_entered ON %s USING (%s) WITH CHECK (%s)', t, ok, ok);
  END LOOP;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.entered_policy(), cell.unit_table(regclass) FROM PUBLIC;
