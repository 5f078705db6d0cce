-- The people and goods of order.sql, for the superuser: buyers 0 to 3 with money, sellers 0 to 3 with one SKU each. Every
-- slot is this cell's. Triggers and keys are off meanwhile, so that one transaction may write to several slots.
SET session_replication_role = replica;
SELECT cell.set_lease('infinity');
INSERT INTO cell.slots (slot, epoch, owner, role) SELECT n, 1, 'c1', 'owner' FROM generate_series(0, 16383) n;
INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency, available, external)
  SELECT (k + 1) * 1000, 1, 1, (1000 + k) * 16384::bigint + (k + 1) * 1000, 'CNY', 1000000000000, -1000000000000 FROM generate_series(0, 3) k;
INSERT INTO cell.wallets (slot, epoch, rev, user_id, currency)
  SELECT 8000 + k * 1000, 1, 1, (2000 + k) * 16384::bigint + 8000 + k * 1000, 'CNY' FROM generate_series(0, 3) k;
INSERT INTO users.users (slot, epoch, rev, id, phone, phone_mac, name, password_hash, seller, shop_name)
  SELECT 8000 + k * 1000, 1, 1, (2000 + k) * 16384::bigint + 8000 + k * 1000, k::text, k::text::bytea, 'Seller', '-', true, 'Shop'
  FROM generate_series(0, 3) k;
INSERT INTO catalog.products (id, seller_id, title, description, category, active, version, generation, created_at, updated_at)
  SELECT (3000 + k) * 16384::bigint + 8000 + k * 1000, (2000 + k) * 16384::bigint + 8000 + k * 1000, 'Teapot', 'for one', 'home', true, 1, 1, now(), now()
  FROM generate_series(0, 3) k;
INSERT INTO catalog.skus (id, product_id, position, title, price, currency)
  SELECT (4000 + k) * 16384::bigint + 8000 + k * 1000, (3000 + k) * 16384::bigint + 8000 + k * 1000, 0, 'red', 5350, 'CNY' FROM generate_series(0, 3) k;
INSERT INTO inventory.stock (slot, epoch, rev, sku, seller_id, stocked, free)
  SELECT 8000 + k * 1000, 1, 1, (4000 + k) * 16384::bigint + 8000 + k * 1000, (2000 + k) * 16384::bigint + 8000 + k * 1000, 1000000, 1000000
  FROM generate_series(0, 3) k;
SET session_replication_role = origin;
ANALYZE;
