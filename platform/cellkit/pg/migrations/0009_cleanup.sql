-- +goose Up
-- What of this database is the cell's own, now that it also has copies of what it stands by for; and the clean-up of
-- what is neither (P6).

-- The slots whose rows count here. Whatever looks over several slots goes through it: a sweeper that took a copy for
-- the real thing would only be refused by the fence, an audit would count money twice. Who wants to write needs active.
CREATE VIEW cell.owned AS
  SELECT slot, epoch, state = 'active' AS active FROM cell.slots WHERE role = 'owner' AND state <> 'given';

-- Slots that this cell has let go of and that may have rows left. A list, not a look for rows that are nobody's: those
-- that no change of a role explains are somebody's mistake, and are named (I2), not swept away.
CREATE TABLE cell.cleanup (
  slot  int         PRIMARY KEY,
  state text        NOT NULL CHECK (state IN ('open', 'held')),  -- held: it was owned here, and taken by another cell.
  since timestamptz NOT NULL DEFAULT clock_timestamp()           -- What it committed last may exist nowhere else (P7).
);
CREATE TABLE cell.cleanup_run (
  one      boolean     PRIMARY KEY DEFAULT true CHECK (one),
  deleted  bigint      NOT NULL DEFAULT 0,
  batch_at timestamptz                                           -- when it last got on
);
INSERT INTO cell.cleanup_run DEFAULT VALUES;

-- Roles change under the slot's exclusive lock, and with them the list.
-- +goose StatementBegin
CREATE FUNCTION cell.slots_left() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM cell.cleanup c USING now_is n WHERE c.slot = n.slot AND n.role <> 'none';
  INSERT INTO cell.cleanup (slot, state)
    SELECT n.slot, CASE o.role WHEN 'owner' THEN 'held' ELSE 'open' END
    FROM was o JOIN now_is n ON n.slot = o.slot WHERE o.role <> 'none' AND n.role = 'none'
    ON CONFLICT (slot) DO NOTHING;
  -- What is to be sent is the owner's note. The dispatcher would read over the others with each poll.
  DELETE FROM cell.relay r USING was o, now_is n
    WHERE o.role = 'owner' AND n.role <> 'owner' AND n.slot = o.slot AND r.slot = n.slot;
  PERFORM cell.renote_relay(n.slot) FROM was o JOIN now_is n ON n.slot = o.slot WHERE o.role = 'none' AND n.role = 'owner';
  RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER slots_left AFTER UPDATE ON cell.slots REFERENCING OLD TABLE AS was NEW TABLE AS now_is
  FOR EACH STATEMENT EXECUTE FUNCTION cell.slots_left();
ALTER TABLE cell.slots ENABLE ALWAYS TRIGGER slots_left;  -- the applier's session too

-- One batch: at most p_limit rows, of at most 256 slots, ascending. It runs with the caller's rights, so the policies of
-- the applier's role hold. The slots are entered (shared locks, then their roles); one that has a role isn't touched.
-- +goose StatementBegin
CREATE FUNCTION cell.clean_up(p_limit int, OUT slots int, OUT rows int)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  ready int[];
  t     text;
  k     int;
BEGIN
  IF p_limit NOT BETWEEN 1 AND 1000 THEN
    RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'a batch has 1 to 1000 rows';
  END IF;
  slots := 0;
  rows := 0;
  SELECT array_agg(e.slot) INTO ready
    FROM cell.enter_applier(ARRAY(SELECT c.slot FROM cell.cleanup c WHERE c.state = 'open' ORDER BY c.slot LIMIT 256)) e WHERE e.role = 'none';
  -- The list again, as it is under the locks.
  ready := ARRAY(SELECT c.slot FROM cell.cleanup c WHERE c.slot = ANY (ready) AND c.state = 'open');
  IF ready = '{}' THEN RETURN; END IF;
  FOR t IN SELECT u.name FROM cell.unit_tables u ORDER BY u.name LOOP
    EXECUTE format('DELETE FROM %1$s WHERE slot = ANY ($1) AND ctid = ANY (ARRAY(SELECT ctid FROM %1$s WHERE slot = ANY ($1) LIMIT $2))', t)
      USING ready, p_limit - rows;
    GET DIAGNOSTICS k = ROW_COUNT;
    rows := rows + k;
    EXIT WHEN rows >= p_limit;
  END LOOP;
  IF rows < p_limit THEN
    DELETE FROM cell.cleanup c WHERE c.slot = ANY (ready);
    GET DIAGNOSTICS slots = ROW_COUNT;
  END IF;
  UPDATE cell.cleanup_run SET deleted = deleted + rows, batch_at = clock_timestamp();
END $$;
-- +goose StatementEnd

-- What is left to be done, counted.
-- +goose StatementBegin
CREATE FUNCTION cell.leftovers(OUT slots int, OUT held int, OUT rows bigint, OUT oldest_ms float8, OUT deleted bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  t text;
  k bigint;
BEGIN
  SELECT count(*), count(*) FILTER (WHERE c.state = 'held'), coalesce(extract(epoch FROM now() - min(c.since)) * 1000, 0)
    INTO slots, held, oldest_ms FROM cell.cleanup c;
  SELECT r.deleted INTO deleted FROM cell.cleanup_run r;
  rows := 0;
  IF slots = 0 THEN RETURN; END IF;
  FOR t IN SELECT u.name FROM cell.unit_tables u LOOP
    EXECUTE format('SELECT count(*) FROM cell.cleanup c JOIN %s t ON t.slot = c.slot', t) INTO k;
    rows := rows + k;
  END LOOP;
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.slots_left(), cell.clean_up(int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.clean_up(int) TO cellmart_applier;
GRANT SELECT ON cell.owned TO cellmart_app, cellmart_agent, cellmart_applier;
GRANT SELECT ON cell.cleanup, cell.cleanup_run TO cellmart_agent;
GRANT SELECT, DELETE ON cell.cleanup TO cellmart_applier;
GRANT SELECT, UPDATE ON cell.cleanup_run TO cellmart_applier;
