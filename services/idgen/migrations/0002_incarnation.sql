-- +goose Up
-- The same answer as before, in PL/pgSQL: a function in SQL is planned anew at
-- each call, which was half of a lease's time.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION idgen.incarnation() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog AS $$
BEGIN
    RETURN (SELECT s.system_identifier FROM pg_control_system() s)
        || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        || '/' || floor(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint;
END $$;
-- +goose StatementEnd
