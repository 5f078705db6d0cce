-- +goose Up
-- Exchange of standbys (P4.2): the incoming one is brought there beside the old one, which goes when the table says so.

-- Standbys of slots whose owner and epoch stay. The caller holds their exclusive locks. Returns how many changed.
-- +goose StatementBegin
CREATE FUNCTION cell.take_standbys(p_slots int[], p_owners text[], p_standbys text[], p_epochs bigint[]) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me text := (SELECT cell FROM cell.identity);
  n  int;
BEGIN
  UPDATE cell.slots s
    SET standby = nullif(u.standby, ''), incoming = nullif(s.incoming, u.standby), changed_at = now(),
        role = CASE me WHEN s.owner THEN s.role WHEN nullif(u.standby, '') THEN 'standby' WHEN nullif(s.incoming, u.standby) THEN 'incoming' ELSE 'none' END
    FROM unnest(p_slots, p_owners, p_standbys, p_epochs) AS u(slot, owner, standby, epoch)
    WHERE s.slot = u.slot AND u.epoch = s.epoch AND u.owner = s.owner AND s.state <> 'given'
      AND nullif(u.standby, '') IS DISTINCT FROM s.standby;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd

-- As before, and a newer table also changes a slot's standby at an equal epoch. It never changes the owner there, nor a
-- slot that was given away (that counts as the next epoch), nor one that somebody owns whom the table doesn't name.
-- The slots to which this cell is something, before or after, change under their exclusive lock, ascending: nobody is
-- inside, neither a writer nor the applier.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.apply_table(p_version bigint, p_signed bytea, p_slots int[], p_owners text[], p_standbys text[], p_epochs bigint[])
RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me   text := (SELECT cell FROM cell.identity);
  n    int;
  m    int;
  have bigint;
BEGIN
  PERFORM pg_advisory_xact_lock(4402);
  SELECT version INTO have FROM cell.route;
  IF have >= p_version THEN RETURN 0; END IF;
  PERFORM pg_advisory_xact_lock(4401, t.slot)
    FROM (SELECT u.slot FROM unnest(p_slots, p_owners, p_standbys, p_epochs) AS u(slot, owner, standby, epoch)
          JOIN cell.slots s ON s.slot = u.slot
          WHERE (u.epoch > s.epoch + (s.state = 'given')::int
                 OR u.epoch = s.epoch AND u.owner = s.owner AND s.state <> 'given' AND nullif(u.standby, '') IS DISTINCT FROM s.standby)
            AND (s.role <> 'none' OR me IN (u.owner, u.standby))
          ORDER BY u.slot) t;
  -- Statements of their own: they see what was committed before the locks came.
  m := cell.take_standbys(p_slots, p_owners, p_standbys, p_epochs);
  INSERT INTO cell.slots AS s (slot, epoch, owner, standby, role)
    SELECT u.slot, u.epoch, u.owner, nullif(u.standby, ''),
           CASE me WHEN u.owner THEN 'owner' WHEN nullif(u.standby, '') THEN 'standby' ELSE 'none' END
    FROM unnest(p_slots, p_owners, p_standbys, p_epochs) AS u(slot, owner, standby, epoch)
    ORDER BY u.slot
    ON CONFLICT (slot) DO UPDATE
      SET epoch = excluded.epoch, owner = excluded.owner, standby = excluded.standby, incoming = NULL, role = excluded.role,
          state = 'active', given_to = NULL, changed_at = now()
      WHERE excluded.epoch > s.epoch + (s.state = 'given')::int;
  GET DIAGNOSTICS n = ROW_COUNT;
  INSERT INTO cell.route (version, signed) VALUES (p_version, p_signed)
    ON CONFLICT (one) DO UPDATE SET version = excluded.version, signed = excluded.signed, applied_at = now();
  RETURN n + m;
END $$;
-- +goose StatementEnd

-- The newest table of which some changes may be here already, see change_standbys.
ALTER TABLE cell.route ADD COLUMN begun bigint NOT NULL DEFAULT 0;

-- What apply_table does at equal epochs, for some slots of a table that is yet to be applied: thousands of slots in one
-- transaction would all be locked until the last of them is. Returns how many changed.
-- +goose StatementBegin
CREATE FUNCTION cell.change_standbys(p_version bigint, p_slots int[], p_owners text[], p_standbys text[], p_epochs bigint[])
RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me text := (SELECT cell FROM cell.identity);
BEGIN
  PERFORM pg_advisory_xact_lock(4402);
  PERFORM FROM cell.route WHERE version < p_version AND begun <= p_version;
  IF NOT FOUND THEN RETURN 0; END IF;
  UPDATE cell.route SET begun = p_version WHERE begun < p_version;
  PERFORM pg_advisory_xact_lock(4401, t.slot)
    FROM (SELECT u.slot FROM unnest(p_slots, p_owners, p_standbys, p_epochs) AS u(slot, owner, standby, epoch)
          JOIN cell.slots s ON s.slot = u.slot
          WHERE u.epoch = s.epoch AND u.owner = s.owner AND s.state <> 'given' AND nullif(u.standby, '') IS DISTINCT FROM s.standby
            AND (s.role <> 'none' OR me IN (u.owner, u.standby))
          ORDER BY u.slot) t;
  RETURN cell.take_standbys(p_slots, p_owners, p_standbys, p_epochs);
END $$;
-- +goose StatementEnd

-- The owner takes a cell as the incoming one of slots, or lets go of it (''). Only at the owner, and all slots or none;
-- under their exclusive locks, ascending. A cell that is the slot's standby already isn't incoming. Returns how many
-- slots changed: asked again it is 0.
-- +goose StatementBegin
CREATE FUNCTION cell.set_incoming(p_slots int[], p_target text) RETURNS int
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  me     text := (SELECT cell FROM cell.identity);
  target text := nullif(p_target, '');
  bad    cell.slots;
  wrong  int;
  n      int;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION USING ERRCODE = 'SL007', MESSAGE = 'a slot is entered under READ COMMITTED only';
  END IF;
  IF target = me THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'an owner is not its own standby';
  END IF;
  PERFORM pg_advisory_xact_lock(4401, t.slot)
    FROM (SELECT s.slot FROM cell.slots s
          WHERE s.slot = ANY (p_slots) AND s.incoming IS DISTINCT FROM nullif(target, s.standby) ORDER BY s.slot) t;
  SELECT u.slot INTO wrong FROM unnest(p_slots) AS u(slot) LEFT JOIN cell.slots s ON s.slot = u.slot
    WHERE s.role IS DISTINCT FROM 'owner' ORDER BY u.slot LIMIT 1;
  IF FOUND THEN
    SELECT * INTO bad FROM cell.slots WHERE slot = wrong;
    RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s is not owned here', wrong),
      DETAIL = CASE WHEN bad.slot IS NULL THEN '' ELSE json_build_object('owner', bad.owner, 'epoch', bad.epoch)::text END;
  END IF;
  SELECT * INTO bad FROM cell.slots s WHERE s.slot = ANY (p_slots) AND s.state <> 'active' ORDER BY s.slot LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'SL003', MESSAGE = format('slot %s is %s', bad.slot, bad.state),
      DETAIL = json_build_object('owner', coalesce(bad.given_to, bad.owner), 'epoch', bad.epoch + (bad.state = 'given')::int)::text;
  END IF;
  UPDATE cell.slots s SET incoming = nullif(target, s.standby), changed_at = now()
    WHERE s.slot = ANY (p_slots) AND s.incoming IS DISTINCT FROM nullif(target, s.standby);
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION cell.set_incoming(int[], text), cell.take_standbys(int[], text[], text[], bigint[]), cell.change_standbys(bigint, int[], text[], text[], bigint[]) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.set_incoming(int[], text), cell.change_standbys(bigint, int[], text[], text[], bigint[]) TO cellmart_agent;

-- Reads at a standby are sent home: what may be read there, and how it is marked, goes by rules that don't exist yet
-- (design 8), and a copy that isn't whole yet would answer "not found".
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.see(p_slot int) RETURNS boolean
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
  RAISE EXCEPTION USING ERRCODE = 'SL001', MESSAGE = format('slot %s has another owner', p_slot),
    DETAIL = json_build_object('owner', coalesce(s.given_to, s.owner),
      'epoch', s.epoch + (s.state = 'given')::int)::text;
END $$;
-- +goose StatementEnd
