-- +goose Up
-- Is a copy the same as its owner's rows? Counts and digests by slot and table, and the rows behind them. Both sides run
-- these functions, so a row must have one text whatever the session or the server's defaults say: what a type's output
-- depends on is set by the functions themselves, and columns go by name.

-- A column's text with its length, so that no two rows run together the same; '-' = NULL.
-- +goose StatementBegin
CREATE FUNCTION cell.row_text(t regclass) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT string_agg(format('coalesce(length(%1$I::text) || '':'' || %1$I::text, ''-'')', attname), ' || ' ORDER BY attname COLLATE "C")
  FROM pg_attribute WHERE attrelid = t AND attnum > 0 AND NOT attisdropped
$$;
-- +goose StatementEnd

-- A unit table's columns, by name, and its key after slot.
-- +goose StatementBegin
CREATE FUNCTION cell.row_columns(p_table text, OUT columns text[], OUT key text[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE t regclass;
BEGIN
  SELECT u.name::regclass INTO t FROM cell.unit_tables u WHERE u.name = p_table;
  IF t IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = format('%s is no unit table', p_table);
  END IF;
  columns := ARRAY(SELECT attname || ' ' || format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = t AND attnum > 0 AND NOT attisdropped ORDER BY attname COLLATE "C");
  key := ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int[]) WITH ORDINALITY AS k(attnum, n)
    JOIN pg_attribute a ON a.attrelid = t AND a.attnum = k.attnum
    WHERE i.indrelid = t AND i.indisprimary AND a.attname <> 'slot' ORDER BY k.n);
END $$;
-- +goose StatementEnd

-- Count, sum and exclusive or of the rows' 64-bit hashes: two rows exchanged between slots, or a row that is there
-- twice, can't cancel out in all three. Slots without rows aren't listed.
-- +goose StatementBegin
CREATE FUNCTION cell.digest(p_table text, p_slots int[]) RETURNS TABLE (slot int, n bigint, sum numeric, xor bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET extra_float_digits = 3
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
#variable_conflict use_column
BEGIN
  PERFORM cell.row_columns(p_table);
  RETURN QUERY EXECUTE format(
    'SELECT slot, count(*), sum(h), bit_xor(h) FROM (SELECT slot, hashtextextended(%s, 0) AS h FROM %s WHERE slot = ANY ($1)) r GROUP BY slot',
    cell.row_text(p_table::regclass), p_table) USING p_slots;
END $$;
-- +goose StatementEnd

-- Rows of a slot by key, after one key and up to another (NULL = no bound), in an order that both sides have: texts are
-- compared by their bytes.
-- +goose StatementBegin
CREATE FUNCTION cell.digest_rows(p_table text, p_slot int, p_after text[], p_upto text[], p_limit int)
RETURNS TABLE (key text[], epoch bigint, rev bigint, hash bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET extra_float_digits = 3
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
#variable_conflict use_column
DECLARE
  names  text[] := (SELECT c.key FROM cell.row_columns(p_table) c);
  texts  text   := (SELECT string_agg(format('%I::text', k), ', ') FROM unnest(names) k);
  typed  text;
  after  text;
  upto   text;
BEGIN
  IF cardinality(names) = 0 THEN
    RETURN QUERY EXECUTE format('SELECT ARRAY[]::text[], epoch, rev, hashtextextended(%s, 0) FROM %s WHERE slot = $1 AND $2::text[] IS NULL',
      cell.row_text(p_table::regclass), p_table) USING p_slot, p_after;
    RETURN;
  END IF;
  SELECT string_agg(format('%I', k.name) || CASE WHEN a.attcollation <> 0 THEN ' COLLATE "C"' ELSE '' END, ', ' ORDER BY k.n),
         string_agg(format('%L::%s', p_after[k.n], format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY k.n),
         string_agg(format('%L::%s', p_upto[k.n], format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY k.n)
    INTO typed, after, upto
    FROM unnest(names) WITH ORDINALITY AS k(name, n) JOIN pg_attribute a ON a.attrelid = p_table::regclass AND a.attname = k.name;
  RETURN QUERY EXECUTE format('SELECT ARRAY[%s], epoch, rev, hashtextextended(%s, 0) FROM %s WHERE slot = $1 AND %s AND %s ORDER BY %s LIMIT $2',
    texts, cell.row_text(p_table::regclass), p_table,
    CASE WHEN p_after IS NULL THEN 'true' ELSE format('(%s) > (%s)', typed, after) END,
    CASE WHEN p_upto IS NULL THEN 'true' ELSE format('(%s) <= (%s)', typed, upto) END,
    typed) USING p_slot, p_limit;
END $$;
-- +goose StatementEnd

-- The columns of one row, each with its hash: which of them differ is told by comparing, without any value leaving.
-- +goose StatementBegin
CREATE FUNCTION cell.digest_columns(p_table text, p_slot int, p_key text[]) RETURNS TABLE (name text, hash bigint)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'postgres' SET extra_float_digits = 3
SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
  names text[] := (SELECT c.key FROM cell.row_columns(p_table) c);
  hit   text;
  cols  text;
BEGIN
  SELECT coalesce(string_agg(format(' AND %I = %L::%s', k.name, p_key[k.n], format_type(a.atttypid, a.atttypmod)), ''), '') INTO hit
    FROM unnest(names) WITH ORDINALITY AS k(name, n) JOIN pg_attribute a ON a.attrelid = p_table::regclass AND a.attname = k.name;
  SELECT string_agg(format('(%1$L, hashtextextended(coalesce(''='' || t.%1$I::text, ''-''), 0))', attname), ', ' ORDER BY attname COLLATE "C") INTO cols
    FROM pg_attribute WHERE attrelid = p_table::regclass AND attnum > 0 AND NOT attisdropped;
  RETURN QUERY EXECUTE format('SELECT c.name, c.hash FROM %s t, LATERAL (VALUES %s) AS c(name, hash) WHERE t.slot = $1%s', p_table, cols, hit) USING p_slot;
END $$;
-- +goose StatementEnd

-- Rows of slots that this cell neither owns nor stands by for, by slot. "left" = on the list of the clean-up.
-- +goose StatementBegin
CREATE FUNCTION cell.strays(p_table text) RETURNS TABLE (slot int, n bigint, "left" boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  PERFORM cell.row_columns(p_table);
  RETURN QUERY EXECUTE format('SELECT r.slot, r.n, EXISTS (SELECT FROM cell.cleanup c WHERE c.slot = r.slot)
    FROM (SELECT t.slot, count(*) AS n FROM %s t
          WHERE NOT EXISTS (SELECT FROM cell.slots s WHERE s.slot = t.slot AND s.role <> ''none'') GROUP BY t.slot) r ORDER BY r.slot', p_table);
END $$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION cell.row_text(regclass), cell.row_columns(text), cell.digest(text, int[]),
  cell.digest_rows(text, int, text[], text[], int), cell.digest_columns(text, int, text[]), cell.strays(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.row_text(regclass), cell.row_columns(text), cell.digest(text, int[]),
  cell.digest_rows(text, int, text[], text[], int), cell.digest_columns(text, int, text[]), cell.strays(text) TO cellmart_agent;

-- Session locks on slots, exclusive, for the moment in which the owner's snapshot is taken. Slots that nobody is inside
-- are taken first, without waiting; for the others it waits, p_wait_ms in all, and then fails: what it has is still
-- held, and the caller's next statement lets it go. Returns when the first was taken.
-- +goose StatementBegin
CREATE FUNCTION cell.lock_slots(p_slots int[], p_wait_ms int) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  began timestamptz := clock_timestamp();
  rest  int[] := ARRAY(SELECT u.s FROM unnest(p_slots) AS u(s) WHERE NOT pg_try_advisory_lock(4401, u.s));
  ms    int;
  s     int;
BEGIN
  FOREACH s IN ARRAY rest LOOP
    ms := p_wait_ms - ceil(extract(epoch FROM clock_timestamp() - began) * 1000);
    IF ms < 1 THEN
      RAISE EXCEPTION USING ERRCODE = '55P03', MESSAGE = format('slot %s is busy', s);
    END IF;
    PERFORM set_config('lock_timeout', ms::text, true);
    PERFORM pg_advisory_lock(4401, s);
  END LOOP;
  RETURN began;
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION cell.lock_slots(int[], int) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION cell.lock_slots(int[], int) TO cellmart_agent;
