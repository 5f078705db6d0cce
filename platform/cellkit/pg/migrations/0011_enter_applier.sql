-- +goose Up
-- The applier enters thousands of slots at once: their shared locks are one statement, ascending as before, and
-- their rows are found by one index scan. What it promises is said in 0006_standby.sql.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION cell.enter_applier(p_slots int[], p_exclusive int[] DEFAULT '{}')
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
  IF coalesce(cardinality(p_exclusive), 0) = 0 THEN
    PERFORM pg_advisory_xact_lock_shared(4401, t.n) FROM (SELECT u.n FROM unnest(p_slots) AS u(n) ORDER BY u.n) t;
  ELSE
    FOR n, own IN SELECT u.n, u.n = ANY (p_exclusive) FROM unnest(p_slots || p_exclusive) AS u(n) GROUP BY u.n ORDER BY u.n LOOP
      IF own THEN
        PERFORM pg_advisory_xact_lock(4401, n);
      ELSE
        PERFORM pg_advisory_xact_lock_shared(4401, n);
      END IF;
    END LOOP;
  END IF;
  -- No slot has this name: the policies of the application's role never match it.
  PERFORM set_config('cell.slot', 'applier', true), set_config('cell.epoch', '0', true),
    set_config('cell.seal', cell.seal('applier', '0'), true);
  RETURN QUERY SELECT s.slot, s.role, s.epoch, s.owner, coalesce(p.source, ''), coalesce(p.epoch, 0), coalesce(p.state, ''),
      coalesce(p.copy, ''), coalesce(p.copy_n, 0), coalesce(p.covered, false), coalesce(p.fresh, false)
    FROM cell.slots s LEFT JOIN cell.standby_slots p ON p.slot = s.slot WHERE s.slot = ANY (p_slots || p_exclusive);
END $$;
-- +goose StatementEnd
