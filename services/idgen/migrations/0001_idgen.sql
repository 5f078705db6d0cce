-- +goose Up
-- One row per kind. Times are milliseconds since 2026-01-01T00:00:00Z on idgen's
-- clock, the one that also floors the sequences.
CREATE TABLE idgen.kinds (
    kind         text     PRIMARY KEY,
    number       smallint NOT NULL UNIQUE CHECK (number BETWEEN 1 AND 32767),
    hi           bigint   NOT NULL CHECK (hi BETWEEN 0 AND (1::bigint << 48) - 1),
    incarnation  text     NOT NULL,
    paused_until bigint   NOT NULL DEFAULT 0
);

-- Every lease there was. The exclusion constraint is the last line: whatever went
-- wrong with hi, a range that overlaps an older one can't be committed. Kind and
-- range are one int8range (the kind above the 48 bits of a sequence), so plain
-- GiST will do and no extension is needed.
CREATE TABLE idgen.journal (
    number smallint    NOT NULL CHECK (number BETWEEN 1 AND 32767),
    lo     bigint      NOT NULL CHECK (lo > 0),
    hi     bigint      NOT NULL CHECK (hi > lo AND hi < 1::bigint << 48),
    holder text        NOT NULL,
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (number, lo),
    CONSTRAINT journal_no_overlap EXCLUDE USING gist (
        int8range((number::bigint << 48) + lo, (number::bigint << 48) + hi) WITH &&)
);

-- +goose StatementBegin
CREATE FUNCTION idgen.keep_hi() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NEW.hi < OLD.hi OR NEW.number <> OLD.number OR NEW.kind <> OLD.kind THEN
        RAISE EXCEPTION 'idgen: % may not go from % to %', OLD.kind, OLD.hi, NEW.hi USING ERRCODE = 'IG001';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER keep_hi BEFORE UPDATE ON idgen.kinds FOR EACH ROW EXECUTE FUNCTION idgen.keep_hi();

-- Which database this is, and which life of it: another system identifier is
-- another cluster (a copy keeps it, its start differs), another timeline a promotion
-- or a recovery, another start a restart, so anything that could have lost the end
-- of history shows. The timeline is read off the WAL being written:
-- pg_control_checkpoint() still has the old one until the first checkpoint after
-- a promotion.
CREATE FUNCTION idgen.incarnation() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT s.system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        || '/' || floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
    FROM pg_control_system() s
$$;

GRANT SELECT, INSERT, UPDATE ON idgen.kinds TO cellmart_app;
GRANT SELECT, INSERT ON idgen.journal TO cellmart_app;
