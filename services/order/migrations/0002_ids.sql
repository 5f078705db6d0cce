-- +goose Up
-- The sign, slot and mode bit of IDs, checked by the database. A hold's slot is the seller's.
SELECT cell.id_column('orders.orders', 'id', true), cell.id_column('orders.holds', 'hold_id', false), cell.id_column('orders.holds', 'transfer_id', true);
