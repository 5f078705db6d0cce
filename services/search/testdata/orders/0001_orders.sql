-- +goose Up
CREATE TABLE orders.orders (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL DEFAULT 1,
  rev        bigint NOT NULL DEFAULT 1,
  id         bigint NOT NULL,
  user_id    bigint NOT NULL,
  state      text   NOT NULL,
  currency   text   NOT NULL DEFAULT 'CNY',
  address    jsonb,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, id)
);
CREATE TABLE orders.lines (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL DEFAULT 1,
  rev        bigint NOT NULL DEFAULT 1,
  order_id   bigint NOT NULL,
  sku        bigint NOT NULL,
  product_id bigint NOT NULL,
  seller_id  bigint NOT NULL,
  title      text   NOT NULL,
  price      bigint NOT NULL,
  quantity   bigint NOT NULL,
  PRIMARY KEY (slot, order_id, sku)
);
