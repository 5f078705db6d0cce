-- +goose Up
-- Carts and orders, homed at the buyer's slot (design 7).

CREATE TABLE orders.carts (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  user_id    bigint NOT NULL,
  PRIMARY KEY (slot, user_id)
);
SELECT cell.unit_table('orders.carts');

-- Quantity 0 = taken out: rows of unit data are never deleted.
CREATE TABLE orders.cart_items (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  user_id    bigint NOT NULL,
  sku        bigint NOT NULL,
  quantity   bigint NOT NULL CHECK (quantity BETWEEN 0 AND 99),
  added_at   timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, user_id, sku)
);
SELECT cell.unit_table('orders.cart_items');

CREATE TABLE orders.orders (
  slot              int    NOT NULL,
  epoch             bigint NOT NULL,
  rev               bigint NOT NULL,
  id                bigint NOT NULL,
  user_id           bigint NOT NULL,
  state             text   NOT NULL CHECK (state IN ('PENDING', 'RESERVED', 'PAID', 'SHIPPED', 'COMPLETED', 'CANCELLED', 'REFUNDED')),
  reason            text   NOT NULL DEFAULT '',
  payment_status    text   NOT NULL CHECK (payment_status IN ('NONE', 'FROZEN', 'PAID', 'RETURNED')),
  fulfilment_status text   NOT NULL CHECK (fulfilment_status IN ('WAITING', 'TO_SHIP', 'CANCELLED')),
  currency          text   NOT NULL,
  total             bigint NOT NULL CHECK (total >= 0),
  address           jsonb,
  from_cart         boolean NOT NULL,
  deadline          timestamptz NOT NULL,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  events            int    NOT NULL DEFAULT 0,  -- rows of order_events
  PRIMARY KEY (slot, id),
  CHECK ((state = 'CANCELLED') = (reason <> '')),
  CHECK (state <> 'CANCELLED' OR payment_status IN ('NONE', 'RETURNED')),
  CHECK (state <> 'PAID' OR payment_status = 'PAID')
);
CREATE INDEX orders_by_user ON orders.orders (slot, user_id, created_at DESC, id DESC);
CREATE INDEX orders_pending ON orders.orders (deadline) WHERE state = 'PENDING';
SELECT cell.unit_table('orders.orders');

CREATE TABLE orders.lines (
  slot        int    NOT NULL,
  epoch       bigint NOT NULL,
  rev         bigint NOT NULL,
  order_id    bigint NOT NULL,
  sku         bigint NOT NULL,
  product_id  bigint NOT NULL,
  seller_id   bigint NOT NULL,
  hold_id     bigint NOT NULL,
  hold_slot   int    NOT NULL,              -- where the line's stock is held
  title       text   NOT NULL,
  price       bigint NOT NULL CHECK (price >= 0),
  quantity    bigint NOT NULL CHECK (quantity BETWEEN 1 AND 99),
  PRIMARY KEY (slot, order_id, sku)
);
SELECT cell.unit_table('orders.lines');

-- One per seller: a hold of stock, and a payment once the order is paid.
CREATE TABLE orders.holds (
  slot        int    NOT NULL,
  epoch       bigint NOT NULL,
  rev         bigint NOT NULL,
  order_id    bigint NOT NULL,
  hold_id     bigint NOT NULL,
  seller_id   bigint NOT NULL,
  seller_slot int    NOT NULL,
  transfer_id bigint NOT NULL,
  state       text   NOT NULL CHECK (state IN ('ASKED', 'RESERVED', 'REFUSED', 'CONFIRMED', 'ENDED', 'RELEASED')),
  amount      bigint NOT NULL CHECK (amount >= 0),
  PRIMARY KEY (slot, order_id, hold_id)
);
SELECT cell.unit_table('orders.holds');

-- What happened, for people.
CREATE TABLE orders.order_events (
  slot     int    NOT NULL,
  epoch    bigint NOT NULL,
  rev      bigint NOT NULL,
  order_id bigint NOT NULL,
  seq      int    NOT NULL,
  event    text   NOT NULL,
  detail   text   NOT NULL DEFAULT '',
  at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (slot, order_id, seq)
);
SELECT cell.unit_table('orders.order_events');
