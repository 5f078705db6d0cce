-- +goose Up
-- The sign, slot and mode bit of IDs, checked by the database.
SELECT cell.id_column('inventory.stock', 'sku', true), cell.id_column('inventory.holds', 'id', true);
