-- +goose Up
-- The cell's own stock of IDs (design 4), handed out by the zone's agent only. These are the cell's rows, not unit
-- data: they are never copied to another cell.

-- How often anything was handed out, +1 in the same transaction. The agent's file has the same number, written before
-- the answer: a database that shows less than the file went back in time.
CREATE TABLE cell.id_life (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  counter bigint      NOT NULL DEFAULT 0 CHECK (counter >= 0),
  losses  int         NOT NULL DEFAULT 0,   -- how often bank, machines and ceilings were given up
  why     text        NOT NULL DEFAULT '',  -- the last time
  lost_at timestamptz
);
INSERT INTO cell.id_life DEFAULT VALUES;

-- Ranges [lo, hi) leased from idgen ahead of need. A withdrawal moves lo up. Their sequences are idgen's, so the mode
-- bit of what is made of them is 0: no more than 48 bits fit.
CREATE TABLE cell.id_bank (
  kind text        NOT NULL,
  lo   bigint      NOT NULL CHECK (lo > 0),
  hi   bigint      NOT NULL CHECK (hi > lo AND hi < 1::bigint << 48),
  at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (kind, hi),
  CONSTRAINT id_bank_no_overlap EXCLUDE USING gist (
    numrange(hashtextextended(kind, 0)::numeric * 281474976710656 + lo, hashtextextended(kind, 0)::numeric * 281474976710656 + hi) WITH &&)
);

-- The fallback's eight machines of this cell. The counter of a machine (31 bits of seconds, 9 of count) was granted
-- from first on and below ceiling, and never is again.
CREATE TABLE cell.id_machines (
  number  int    PRIMARY KEY CHECK (number BETWEEN 0 AND 7),
  first   bigint NOT NULL CHECK (first > 0),
  ceiling bigint NOT NULL CHECK (ceiling >= first AND ceiling < 1::bigint << 40),
  holder  text   NOT NULL,
  granted bigint NOT NULL    -- id_life.counter at its last grant
);

-- A counter, a ceiling and a range's begin only go up; the trigger names the column.
-- +goose StatementBegin
CREATE FUNCTION cell.ids_go_up() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (to_jsonb(NEW) ->> TG_ARGV[0])::bigint < (to_jsonb(OLD) ->> TG_ARGV[0])::bigint THEN
    RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = format('%s of %s only goes up', TG_ARGV[0], TG_TABLE_NAME);
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER ids_go_up BEFORE UPDATE ON cell.id_life FOR EACH ROW EXECUTE FUNCTION cell.ids_go_up('counter');
CREATE TRIGGER ids_go_up BEFORE UPDATE ON cell.id_machines FOR EACH ROW EXECUTE FUNCTION cell.ids_go_up('ceiling');
CREATE TRIGGER ids_go_up BEFORE UPDATE ON cell.id_bank FOR EACH ROW EXECUTE FUNCTION cell.ids_go_up('lo');

-- Which database this is: system identifier and WAL timeline (of the WAL being written: pg_control_checkpoint() is
-- late after a promotion). Not the postmaster's start: a plain restart loses nothing.
CREATE FUNCTION cell.id_database(OUT system text, OUT timeline text) LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT system_identifier::text, substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()
$$;

-- An ordinal above 31 is a cell without a fallback, not a cell that can't be.
ALTER TABLE cell.identity DROP CONSTRAINT identity_ordinal_check, ADD CONSTRAINT identity_ordinal_check CHECK (ordinal BETWEEN 0 AND 9999);

GRANT SELECT, UPDATE ON cell.id_life TO cellmart_agent;
GRANT SELECT, INSERT, UPDATE, DELETE ON cell.id_bank TO cellmart_agent;
GRANT SELECT, INSERT, UPDATE ON cell.id_machines TO cellmart_agent;

-- The mode bit, at the tables that IDs end up in. What a row can show of itself is a CHECK: the sign is 0, a segment's
-- ID has a sequence, a fallback's ID names a cell that can have made it (ordinal 1 to 31).
CREATE FUNCTION cell.is_id(id bigint) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT id > 0 AND CASE WHEN id >> 62 = 0 THEN id >> 14 > 0 ELSE (id >> 17) & 31 > 0 END
$$;

-- And what it can't is held against a stored origin as the row comes in. A fallback ID of this cell lies in what
-- its machine was granted; any other lies no further ahead than clocks can explain. A sequence of the fallback is about
-- 131,072 x seconds, one of idgen's at most 100,000 x seconds: one that lost its bit shows as an ID from the future.
-- +goose StatementBegin
CREATE FUNCTION cell.check_origin() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v       bigint := (to_jsonb(NEW) ->> TG_ARGV[0])::bigint;
  seconds bigint := extract(epoch FROM clock_timestamp() - '2026-01-01T00:00:00Z'::timestamptz)::bigint + 60 * 86400;
  counter bigint := (v >> 22) & ((1::bigint << 40) - 1);
BEGIN
  IF v >> 62 = 0 THEN
    IF v >> 14 > seconds * 100000 THEN
      RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = 'mode_of_' || TG_ARGV[0],
        MESSAGE = format('%s of %s is further ahead than any segment: its mode bit is wrong', v, TG_RELID::regclass);
    END IF;
  ELSIF (v >> 17) & 31 = (SELECT ordinal FROM cell.identity) THEN
    IF NOT EXISTS (SELECT FROM cell.id_machines m WHERE m.number = (v >> 14) & 7 AND counter >= m.first AND counter < m.ceiling) THEN
      RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = 'mode_of_' || TG_ARGV[0],
        MESSAGE = format('%s of %s says it is out of this cell''s fallback, which did not grant it: its mode bit is wrong', v, TG_RELID::regclass);
    END IF;
  ELSIF counter >> 9 > seconds THEN
    RAISE EXCEPTION USING ERRCODE = '23514', CONSTRAINT = 'mode_of_' || TG_ARGV[0],
      MESSAGE = format('%s of %s is further ahead than any fallback: its mode bit is wrong', v, TG_RELID::regclass);
  END IF;
  RETURN NEW;
END $$;
-- +goose StatementEnd

-- Makes a column one of IDs; homed: its low 14 bits are the row's slot, private slots excepted. The trigger's WHEN
-- keeps its price from every plain row.
-- +goose StatementBegin
CREATE FUNCTION cell.id_column(t regclass, col text, homed boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (cell.is_id(%I))', t, col || '_is_id', col);
  IF homed THEN
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I CHECK (slot >= 16384 OR %I & 16383 = slot)', t, col || '_is_home', col);
  END IF;
  EXECUTE format('CREATE TRIGGER %I BEFORE INSERT ON %s FOR EACH ROW
      WHEN (NEW.%I >> 62 <> 0 OR NEW.%I >> 14 > (extract(epoch FROM now()) - 1767225600 + 5184000)::bigint * 100000)
      EXECUTE FUNCTION cell.check_origin(%L)', 'c_origin_' || col, t, col, col, col);
END $$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION cell.id_column(regclass, text, boolean), cell.check_origin(), cell.ids_go_up() FROM PUBLIC;

SELECT cell.id_column('cell.transfers', 'id', true), cell.id_column('cell.credits', 'transfer_id', false), cell.id_column('cell.wallets', 'user_id', true);
