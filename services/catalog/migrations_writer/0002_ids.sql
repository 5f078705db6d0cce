-- +goose Up
-- Sign 0, a sequence, and mode 0: the global zone has no fallback, so none of its IDs can be out of one.
ALTER TABLE catalogw.products ADD CONSTRAINT products_is_id CHECK (id >> 14 > 0 AND id >> 62 = 0);
ALTER TABLE catalogw.skus ADD CONSTRAINT skus_is_id CHECK (id >> 14 > 0 AND id >> 62 = 0);
