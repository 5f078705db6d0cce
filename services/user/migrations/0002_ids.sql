-- +goose Up
-- The sign, slot and mode bit of IDs, checked by the database.
SELECT cell.id_column('users.registrations', 'user_id', true), cell.id_column('users.users', 'id', true), cell.id_column('users.addresses', 'id', true);
