-- What one paid order of one line runs on its cell's database, buyer and seller in one cell, for pgbench (-M prepared).
--
-- How it was made: a demo of two cells with log_statement = all on c1's Postgres; one order by HTTP after six others; the
-- log's statements of role cellmart_app in the order of their start, without the services' polls, with IDs and slots made
-- variables. What the code sends as one batch is one pipeline here; the pipelines around enter and leave are one simple
-- query there. The agent's statements (it reads the outbox) are left out. When the order's path changes, this has to be
-- made again: the bench compares, table by table, the rows written and written again per order, and refuses to compare
-- CPU when they differ.
--
-- The lines "var NAME VALUE" become pgbench's -D NAME=VALUE: bodies of the size and form of that order's.
-- var hash \x2b7f91c6d7bad07e964ddff6b8f8faab4a0c11070950d0fbcd9fac905bf75126
-- var body_hold {"lines": [{"sku": "47152571832698296", "quantity": 1}], "ttl_ns": 900000000000, "hold_id": "47152572406269368", "order_id": "47152572362035710", "seller_id": "47152572357166520", "buyer_slot": 4606}
-- var answer_held {"state": "HELD", "hold_id": "47152572406269368", "order_id": "47152572362035710"}
-- var reply_reserved {"id": "re:4606:stock.reserve:47152572406269368", "to": 4606, "key": "47152572406269368", "body": {"state": "HELD", "hold_id": "47152572406269368", "order_id": "47152572362035710"}, "from": 1464, "kind": "stock.reserved", "trace": "XHQPRWJTGY3BJSCZMUIL4H3MAF", "attempt": 1, "service": "order", "reply_to": "stock.reserve:47152572406269368", "from_cell": "c1"}
-- var order_json \x7b226e756d626572223a22424753592d4d513943542d574d46594a222c227374617465223a225245534552564544222c227061796d656e745f737461747573223a2246524f5a454e222c2266756c66696c6d656e745f737461747573223a2257414954494e47222c22746f74616c223a7b22616d6f756e74223a353335302c2263757272656e6379223a22434e59227d2c22637265617465645f6174223a22323032362d31312d33305430323a32313a30382e3731353233375a222c22757064617465645f6174223a22323032362d31312d33305430323a32313a30382e3735323639315a222c226c696e65735f636f756e74223a312c226c696e6573223a5b7b22736b75223a223437313532353731383332363938323936222c2270726f647563745f6964223a223437313532353731373838353237303332222c2273656c6c65725f6964223a223437313532353732333537313636353230222c227469746c65223a224e6f72746877696e6420747261696c20746f77656c222c227072696365223a7b22616d6f756e74223a353335302c2263757272656e6379223a22434e59227d2c227175616e74697479223a312c22616d6f756e74223a7b22616d6f756e74223a353335302c2263757272656e6379223a22434e59227d7d5d2c227061727473223a5b7b2273656c6c65725f6964223a223437313532353732333537313636353230222c227374617465223a225245534552564544222c22616d6f756e74223a7b22616d6f756e74223a353335302c2263757272656e6379223a22434e59227d7d5d2c2274696d656c696e65223a5b7b226174223a22323032362d31312d33305430323a32313a30382e3731353935335a222c226576656e74223a22706c61636564227d2c7b226174223a22323032362d31312d33305430323a32313a30382e3735343133395a222c226576656e74223a22686f6c645f7265736572766564222c2264657461696c223a2273656c6c6572203437313532353732333537313636353230227d2c7b226174223a22323032362d31312d33305430323a32313a30382e37353431365a222c226576656e74223a225245534552564544227d5d7d
-- var answer_confirmed {"state": "CONFIRMED", "hold_id": "47152572406269368", "order_id": "47152572362035710"}
-- var deadline 2099-01-01 00:00:00+00
-- var body_credit {"to": "47152572357166520", "from": "47152572357022206", "kind": "order", "memo": "BGSY-MQ9CT-WMFYJ", "order": "47152572362035710", "amount": 5350, "currency": "CNY", "transfer": "47152572221133310"}
-- var reply_confirmed {"id": "re:4606:stock.confirm:47152572406269368", "to": 4606, "key": "47152572406269368", "body": {"state": "CONFIRMED", "hold_id": "47152572406269368", "order_id": "47152572362035710"}, "from": 1464, "kind": "stock.confirmed", "attempt": 1, "service": "order", "reply_to": "stock.confirm:47152572406269368", "from_cell": "c1"}
-- var answer_credited {"verdict": "CREDITED", "transfer": "47152572221133310"}
-- var reply_answer {"id": "re:4606:transfer.credit:47152572221133310", "to": 4606, "key": "47152572221133310", "body": {"verdict": "CREDITED", "transfer": "47152572221133310"}, "from": 1464, "kind": "transfer.answer", "attempt": 1, "service": "user", "reply_to": "transfer.credit:47152572221133310", "from_cell": "c1"}

-- One buyer for each client, four sellers: as the bench orders. The low 14 bits of every ID are a slot. See seed.sql.
\set bslot (:client_id + 1) * 1000
\set buyer (1000 + :client_id) * 16384 + :bslot
\set s random(0, 3)
\set sslot 8000 + :s * 1000
\set seller (2000 + :s) * 16384 + :sslot
\set product (3000 + :s) * 16384 + :sslot
\set sku (4000 + :s) * 16384 + :sslot
\set order random(100000, 1000000000000) * 16384 + :bslot
\set hold random(100000, 1000000000000) * 16384 + :sslot
\set transfer random(100000, 1000000000000) * 16384 + :bslot

-- order: was the key used before?
begin read only;
SELECT cell.see(:bslot);
SELECT ref, coalesce(status, 0), location, body, hash = :hash FROM cell.idempotency WHERE slot = :bslot AND actor = :buyer AND route = 'POST /orders'
  AND key = :order;
rollback;

-- catalog: the SKUs
SELECT s.id, p.id, p.seller_id, p.title, s.title, s.price, s.currency, p.active FROM catalog.skus s JOIN catalog.products p ON p.id = s.product_id
  WHERE s.id = ANY(('{' || :sku::text || '}')::bigint[]);

-- order: place, in the buyer's slot
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:bslot, 1, :buyer);
\endpipeline
SELECT pg_try_advisory_xact_lock(hashtextextended(('POST /orders ' || :buyer::text || ' ' || :order::text), :bslot));
SELECT ref, coalesce(status, 0), location, body, hash = :hash FROM cell.idempotency WHERE slot = :bslot AND actor = :buyer AND route = 'POST /orders'
  AND key = :order;
\startpipeline
INSERT INTO orders.orders (slot, id, user_id, state, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, events) VALUES
  (:bslot, :order, :buyer, 'PENDING', 'NONE', 'WAITING', 'CNY', 5350, NULL, 'f', now() + 900000000::bigint * interval '1 microsecond', 1);
INSERT INTO orders.lines (slot, order_id, sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity) VALUES (:bslot, :order, :sku,
  :product, :seller, :hold, :sslot, 'Northwind trail towel', 5350, 1);
INSERT INTO orders.holds (slot, order_id, hold_id, seller_id, seller_slot, transfer_id, state, amount) VALUES (:bslot, :order, :hold, :seller, :sslot,
  :transfer, 'ASKED', 5350);
INSERT INTO orders.order_events (slot, order_id, seq, event) VALUES (:bslot, :order, 1, 'placed');
\endpipeline
INSERT INTO cell.idempotency (slot, actor, route, key, hash, ref, status, location, body) VALUES (:bslot, :buyer, 'POST /orders', :order, :hash,
  :order, nullif(0, 0), '', NULL);
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service, trace) VALUES (:bslot, ('stock.reserve:' || :hold::text), :sslot,
  'inventory', 'stock.reserve', :hold, :body_hold, 'order', 'XHQPRWJTGY3BJSCZMUIL4H3MAF') ON CONFLICT (slot, id) DO NOTHING;
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- order: has it been decided?
begin read only;
SELECT cell.see(:bslot);
SELECT state FROM orders.orders WHERE slot = :bslot AND id = :order;
rollback;

-- inventory: RESERVE, in the seller's slot
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:sslot, 1, 0);
\endpipeline
INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES (:sslot, :bslot, ('stock.reserve:' || :hold::text), :hash) ON CONFLICT (slot,
  from_slot, id) DO NOTHING;
\startpipeline
SELECT pg_advisory_xact_lock(hashtextextended('inventory.hold ' || :hold::bigint, :sslot));
SELECT order_id, buyer_slot, seller_id, state FROM inventory.holds WHERE slot = :sslot AND id = :hold;
SELECT sku, quantity FROM inventory.hold_lines WHERE slot = :sslot AND hold_id = :hold ORDER BY sku;
\endpipeline
SELECT sku, seller_id, stocked, free, held, sold FROM inventory.stock WHERE slot = :sslot AND sku = ANY(('{' || :sku::text || '}')::bigint[]) ORDER BY
  sku FOR UPDATE \gset stock_
\set free :stock_free - 1
\set held :stock_held + 1
\set sold :stock_sold
UPDATE inventory.stock SET free = :free, held = :held, sold = :sold WHERE slot = :sslot AND sku = :sku;
\startpipeline
INSERT INTO inventory.holds (slot, id, order_id, buyer_slot, seller_id, state, tombstone, expires_at) VALUES (:sslot, :hold, :order, :bslot, :seller,
  'HELD', 'f', now() + 900000000::bigint * interval '1 microsecond');
INSERT INTO inventory.hold_lines (slot, hold_id, sku, quantity) VALUES (:sslot, :hold, :sku, 1);
\endpipeline
\startpipeline
UPDATE cell.inbox SET reply_kind = 'stock.reserved', reply_body = :answer_held WHERE slot = :sslot AND from_slot = :bslot AND id = ('stock.reserve:'
  || :hold::text);
UPDATE cell.parked SET resolved_at = now() WHERE slot = :sslot AND from_slot = :bslot AND id = ('stock.reserve:' || :hold::text) AND digest =
  '93ed528aad2a04e24060a0b5f35a98b394aac515766a89039581a228cb2ad536' AND resolved_at IS NULL;
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to, trace) VALUES (:sslot, ('re:' || :bslot::text || ':' ||
  'stock.reserve:' || :hold::text), :bslot, 'order', 'stock.reserved', :hold, :answer_held, ('stock.reserve:' || :hold::text),
  'XHQPRWJTGY3BJSCZMUIL4H3MAF') ON CONFLICT (slot, id) DO UPDATE SET trace = excluded.trace;
\endpipeline
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- order: RESERVED, the money is frozen, CONFIRM is sent
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:bslot, 1, 0);
\endpipeline
SELECT closed_at IS NOT NULL FROM cell.outbox WHERE slot = :bslot AND id = ('stock.reserve:' || :hold::text) AND reply_to = '' FOR UPDATE;
SELECT id, user_id, state, reason, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, created_at, updated_at, events
  FROM orders.orders WHERE slot = :bslot AND id = :order FOR UPDATE;
SELECT sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity FROM orders.lines WHERE slot = :bslot AND order_id = :order ORDER BY
  sku;
SELECT hold_id, seller_id, transfer_id, seller_slot, state, amount FROM orders.holds WHERE slot = :bslot AND order_id = :order ORDER BY seller_id;
WITH w AS ( UPDATE cell.wallets SET available = available + -5350, frozen = frozen + 5350, clearing = clearing + 0, external = external + 0, suspense
  = suspense + 0, seq = seq + 1 WHERE slot = :bslot AND user_id = :buyer AND currency = 'CNY' AND available + -5350 BETWEEN 0 AND 9223372036854775807
  AND frozen + 5350 >= 0 AND suspense + 0 >= 0 AND NOT EXISTS (SELECT FROM cell.postings WHERE slot = :bslot AND ref = ('order:' || :order::text) AND
  step = 'freeze') RETURNING seq, available, frozen) INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step,
  available, frozen, memo) SELECT :bslot, :buyer, 'CNY', w.seq, 'available', 'frozen', 5350, ('order:' || :order::text), 'freeze', w.available,
  w.frozen, 'BGSY-MQ9CT-WMFYJ' FROM w;
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service, trace) VALUES (:bslot, ('stock.confirm:' || :hold::text), :sslot,
  'inventory', 'stock.confirm', :hold, :body_hold, 'order', '') ON CONFLICT (slot, id) DO NOTHING;
UPDATE orders.orders SET state = 'RESERVED', reason = '', payment_status = 'FROZEN', fulfilment_status = 'WAITING', events = events + 2, updated_at =
  now() WHERE slot = :bslot AND id = :order AND state = 'PENDING';
\startpipeline
UPDATE orders.holds SET state = 'RESERVED' WHERE slot = :bslot AND order_id = :order AND hold_id = :hold;
INSERT INTO orders.order_events (slot, order_id, seq, event, detail) VALUES (:bslot, :order, 2, 'hold_reserved', ('seller ' || :seller::text));
INSERT INTO orders.order_events (slot, order_id, seq, event, detail) VALUES (:bslot, :order, 3, 'RESERVED', '');
\endpipeline
UPDATE cell.outbox SET closed_at = now(), reply = :reply_reserved WHERE slot = :bslot AND id = ('stock.reserve:' || :hold::text) AND closed_at IS
  NULL;
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- order: has it been decided?
begin read only;
SELECT cell.see(:bslot);
SELECT state FROM orders.orders WHERE slot = :bslot AND id = :order;
rollback;

-- order: the answer
begin read only;
SELECT cell.see(:bslot);
SELECT id, user_id, state, reason, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, created_at, updated_at, events
  FROM orders.orders WHERE slot = :bslot AND id = :order AND user_id = :buyer;
SELECT sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity FROM orders.lines WHERE slot = :bslot AND order_id = :order ORDER BY
  sku;
SELECT hold_id, seller_id, transfer_id, seller_slot, state, amount FROM orders.holds WHERE slot = :bslot AND order_id = :order ORDER BY seller_id;
SELECT at, event, detail FROM orders.order_events WHERE slot = :bslot AND order_id = :order ORDER BY seq;
SELECT id, state FROM cell.transfers WHERE slot = :bslot AND order_id = :order;
rollback;

-- order: the answer is kept under the key
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:bslot, 1, :buyer);
\endpipeline
UPDATE cell.idempotency SET status = 201, location = '/api/v1/orders/BGSY-MQ9CT-WMFYJ', body = :order_json WHERE slot = :bslot AND actor = :buyer AND
  route = 'POST /orders' AND key = :order AND status IS NULL;
SELECT ref, coalesce(status, 0), location, body FROM cell.idempotency WHERE slot = :bslot AND actor = :buyer AND route = 'POST /orders' AND key =
  :order;
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- inventory: CONFIRM, in the seller's slot
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:sslot, 1, 0);
\endpipeline
INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES (:sslot, :bslot, ('stock.confirm:' || :hold::text), :hash) ON CONFLICT (slot,
  from_slot, id) DO NOTHING;
\startpipeline
SELECT pg_advisory_xact_lock(hashtextextended('inventory.hold ' || :hold::bigint, :sslot));
SELECT order_id, buyer_slot, seller_id, state FROM inventory.holds WHERE slot = :sslot AND id = :hold;
SELECT sku, quantity FROM inventory.hold_lines WHERE slot = :sslot AND hold_id = :hold ORDER BY sku;
\endpipeline
SELECT sku, seller_id, stocked, free, held, sold FROM inventory.stock WHERE slot = :sslot AND sku = ANY(('{' || :sku::text || '}')::bigint[]) ORDER BY
  sku FOR UPDATE \gset stock_
\set free :stock_free
\set held :stock_held - 1
\set sold :stock_sold + 1
UPDATE inventory.stock SET free = :free, held = :held, sold = :sold WHERE slot = :sslot AND sku = :sku;
UPDATE inventory.holds SET state = 'CONFIRMED', changed_at = now() WHERE slot = :sslot AND id = :hold AND state = 'HELD';
\startpipeline
UPDATE cell.inbox SET reply_kind = 'stock.confirmed', reply_body = :answer_confirmed WHERE slot = :sslot AND from_slot = :bslot AND id =
  ('stock.confirm:' || :hold::text);
UPDATE cell.parked SET resolved_at = now() WHERE slot = :sslot AND from_slot = :bslot AND id = ('stock.confirm:' || :hold::text) AND digest =
  '13fdd8f6327b04bdf7e6e0396a344cfd34b79edf41128328cc6f8c9aeb7ce61c' AND resolved_at IS NULL;
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to, trace) VALUES (:sslot, ('re:' || :bslot::text || ':' ||
  'stock.confirm:' || :hold::text), :bslot, 'order', 'stock.confirmed', :hold, :answer_confirmed, ('stock.confirm:' || :hold::text), '') ON CONFLICT
  (slot, id) DO UPDATE SET trace = excluded.trace;
\endpipeline
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- order: CONFIRMED, the order is paid, CREDIT is sent
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:bslot, 1, 0);
\endpipeline
SELECT closed_at IS NOT NULL FROM cell.outbox WHERE slot = :bslot AND id = ('stock.confirm:' || :hold::text) AND reply_to = '' FOR UPDATE;
SELECT id, user_id, state, reason, payment_status, fulfilment_status, currency, total, address, from_cart, deadline, created_at, updated_at, events
  FROM orders.orders WHERE slot = :bslot AND id = :order FOR UPDATE;
SELECT sku, product_id, seller_id, hold_id, hold_slot, title, price, quantity FROM orders.lines WHERE slot = :bslot AND order_id = :order ORDER BY
  sku;
SELECT hold_id, seller_id, transfer_id, seller_slot, state, amount FROM orders.holds WHERE slot = :bslot AND order_id = :order ORDER BY seller_id;
SELECT id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, created_at, ended_at FROM cell.transfers
  WHERE slot = :bslot AND id = :transfer FOR UPDATE;
INSERT INTO cell.transfers (slot, id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, ended_at) VALUES
  (:bslot, :transfer, 'order', :buyer, :seller, :sslot, 5350, 'CNY', 'FROZEN', '', 'BGSY-MQ9CT-WMFYJ', :order, :deadline, CASE WHEN 'f' THEN now()
  END) RETURNING id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, created_at, ended_at;
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_service, trace) VALUES (:bslot, ('transfer.credit:' || :transfer::text),
  :sslot, 'user', 'transfer.credit', :transfer, :body_credit, 'user', '') ON CONFLICT (slot, id) DO NOTHING;
UPDATE orders.orders SET state = 'PAID', reason = '', payment_status = 'PAID', fulfilment_status = 'TO_SHIP', events = events + 2, updated_at = now()
  WHERE slot = :bslot AND id = :order AND state = 'RESERVED';
\startpipeline
UPDATE orders.holds SET state = 'CONFIRMED' WHERE slot = :bslot AND order_id = :order AND hold_id = :hold;
INSERT INTO orders.order_events (slot, order_id, seq, event, detail) VALUES (:bslot, :order, 4, 'hold_confirmed', ('seller ' || :seller::text));
INSERT INTO orders.order_events (slot, order_id, seq, event, detail) VALUES (:bslot, :order, 5, 'PAID', '');
\endpipeline
UPDATE cell.outbox SET closed_at = now(), reply = :reply_confirmed WHERE slot = :bslot AND id = ('stock.confirm:' || :hold::text) AND closed_at IS
  NULL;
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- user: CREDIT, in the seller's slot
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:sslot, 1, 0);
\endpipeline
INSERT INTO cell.inbox (slot, from_slot, id, fingerprint) VALUES (:sslot, :bslot, ('transfer.credit:' || :transfer::text), :hash) ON CONFLICT (slot,
  from_slot, id) DO NOTHING;
SELECT transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, reason, memo, created_at FROM cell.credits WHERE slot = :sslot AND
  transfer_id = :transfer;
SELECT closed_at IS NOT NULL FROM users.users WHERE slot = :sslot AND id = :seller;
SELECT EXISTS (SELECT FROM cell.wallets WHERE slot = :sslot AND user_id = :seller AND currency = 'CNY' AND available > 9007199254735641);
INSERT INTO cell.credits (slot, transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, reason, memo) VALUES (:sslot, :transfer,
  'order', :seller, :buyer, :bslot, 5350, 'CNY', 'CREDITED', '', 'BGSY-MQ9CT-WMFYJ') ON CONFLICT (slot, transfer_id) DO NOTHING;
WITH w AS ( UPDATE cell.wallets SET available = available + 5350, frozen = frozen + 0, clearing = clearing + -5350, external = external + 0, suspense
  = suspense + 0, seq = seq + 1 WHERE slot = :sslot AND user_id = :seller AND currency = 'CNY' AND available + 5350 BETWEEN 0 AND 9007199254740991 AND
  frozen + 0 >= 0 AND suspense + 0 >= 0 AND NOT EXISTS (SELECT FROM cell.postings WHERE slot = :sslot AND ref = ('transfer:' || :transfer::text) AND
  step = 'credit') RETURNING seq, available, frozen) INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step,
  available, frozen, memo) SELECT :sslot, :seller, 'CNY', w.seq, 'clearing', 'available', 5350, ('transfer:' || :transfer::text), 'credit',
  w.available, w.frozen, 'BGSY-MQ9CT-WMFYJ' FROM w;
SELECT transfer_id, kind, user_id, from_user, from_slot, amount, currency, state, reason, memo, created_at FROM cell.credits WHERE slot = :sslot AND
  transfer_id = :transfer;
\startpipeline
UPDATE cell.inbox SET reply_kind = 'transfer.answer', reply_body = :answer_credited WHERE slot = :sslot AND from_slot = :bslot AND id =
  ('transfer.credit:' || :transfer::text);
UPDATE cell.parked SET resolved_at = now() WHERE slot = :sslot AND from_slot = :bslot AND id = ('transfer.credit:' || :transfer::text) AND digest =
  '82fa25f58ef2c5556696134e138d5c1d08f70629333b913928e407ea74af1c3f' AND resolved_at IS NULL;
INSERT INTO cell.outbox (slot, id, to_slot, service, kind, key, body, reply_to, trace) VALUES (:sslot, ('re:' || :bslot::text || ':' ||
  'transfer.credit:' || :transfer::text), :bslot, 'user', 'transfer.answer', :transfer, :answer_credited, ('transfer.credit:' || :transfer::text), '')
  ON CONFLICT (slot, id) DO UPDATE SET trace = excluded.trace;
\endpipeline
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline

-- user: the answer to it, in the buyer's slot
\startpipeline
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SELECT cell.enter(:bslot, 1, 0);
\endpipeline
SELECT closed_at IS NOT NULL FROM cell.outbox WHERE slot = :bslot AND id = ('transfer.credit:' || :transfer::text) AND reply_to = '' FOR UPDATE;
SELECT id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, created_at, ended_at FROM cell.transfers
  WHERE slot = :bslot AND id = :transfer FOR UPDATE;
WITH w AS ( UPDATE cell.wallets SET available = available + 0, frozen = frozen + -5350, clearing = clearing + 5350, external = external + 0, suspense
  = suspense + 0, seq = seq + 1 WHERE slot = :bslot AND user_id = :buyer AND currency = 'CNY' AND available + 0 BETWEEN 0 AND 9223372036854775807 AND
  frozen + -5350 >= 0 AND suspense + 0 >= 0 AND NOT EXISTS (SELECT FROM cell.postings WHERE slot = :bslot AND ref = ('transfer:' || :transfer::text)
  AND step = 'settle') RETURNING seq, available, frozen) INSERT INTO cell.postings (slot, user_id, currency, seq, debit, credit, amount, ref, step,
  available, frozen, memo) SELECT :bslot, :buyer, 'CNY', w.seq, 'frozen', 'clearing', 5350, ('transfer:' || :transfer::text), 'settle', w.available,
  w.frozen, 'BGSY-MQ9CT-WMFYJ' FROM w;
UPDATE cell.transfers SET state = 'SETTLED', reason = '', ended_at = CASE WHEN 't' THEN now() END WHERE slot = :bslot AND id = :transfer AND state =
  'FROZEN' RETURNING id, kind, from_user, to_user, to_slot, amount, currency, state, reason, memo, order_id, deadline, created_at, ended_at;
UPDATE cell.outbox o SET closed_at = now() FROM ( SELECT slot, id FROM cell.outbox WHERE slot = :bslot
  AND id = ('transfer.cancel:' || :transfer::text) AND closed_at IS NULL FOR UPDATE SKIP LOCKED) open WHERE o.slot = open.slot AND o.id = open.id;
UPDATE cell.outbox SET closed_at = now(), reply = :reply_answer WHERE slot = :bslot AND id = ('transfer.credit:' || :transfer::text) AND closed_at IS
  NULL;
\startpipeline
SELECT cell.leave();
COMMIT;
SELECT cell.committed();
\endpipeline
