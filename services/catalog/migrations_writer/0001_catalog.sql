-- +goose Up
-- Every change takes the next version from this one row, under its lock and in the same transaction, so the order
-- of versions is the order of commits: who has read up to V never misses a smaller one that commits later (a
-- sequence would let that happen). After a restore from a backup give it another history: the copies then start again.
CREATE TABLE catalogw.counter (
  one     boolean PRIMARY KEY DEFAULT true CHECK (one),
  newest  bigint  NOT NULL,
  history uuid    NOT NULL DEFAULT gen_random_uuid()
);

CREATE TABLE catalogw.categories (
  id       text   PRIMARY KEY CHECK (id ~ '^[a-z][a-z-]{1,39}$'),
  name     text   NOT NULL,
  position int    NOT NULL,
  version  bigint NOT NULL UNIQUE
);
INSERT INTO catalogw.categories (id, name, position, version) VALUES
  ('electronics', 'Electronics', 1, 1),
  ('home', 'Home and kitchen', 2, 2),
  ('fashion', 'Fashion', 3, 3),
  ('beauty', 'Beauty and care', 4, 4),
  ('sports', 'Sports and outdoors', 5, 5),
  ('toys', 'Toys and games', 6, 6),
  ('books', 'Books and stationery', 7, 7),
  ('food', 'Food and drink', 8, 8);
INSERT INTO catalogw.counter (newest) VALUES (8);

CREATE TABLE catalogw.products (
  id          bigint PRIMARY KEY,
  seller_id   bigint NOT NULL,
  title       text   NOT NULL,
  description text   NOT NULL,
  category    text   NOT NULL CONSTRAINT products_category REFERENCES catalogw.categories,
  active      boolean NOT NULL DEFAULT true,
  version     bigint NOT NULL UNIQUE, -- of its last change; the feed reads this index
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  CONSTRAINT products_slot CHECK (id & 16383 = seller_id & 16383) -- R1: a product lives where its seller lives
);

CREATE TABLE catalogw.skus (
  id         bigint PRIMARY KEY,
  product_id bigint NOT NULL REFERENCES catalogw.products,
  position   int    NOT NULL,
  title      text   NOT NULL,
  price      bigint NOT NULL CHECK (price BETWEEN 1 AND 1000000000000),
  currency   text   NOT NULL CHECK (currency IN ('CNY', 'USD', 'EUR', 'JPY')),
  UNIQUE (product_id, position),
  CONSTRAINT skus_slot CHECK (id & 16383 = product_id & 16383)
);

-- The answers given under Idempotency-Keys, as long as their products live.
CREATE TABLE catalogw.idempotency (
  actor      bigint NOT NULL,
  route      text   NOT NULL,
  key        text   NOT NULL,
  hash       bytea  NOT NULL,
  status     int    NOT NULL,
  location   text   NOT NULL,
  body       bytea  NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (actor, route, key)
);

GRANT SELECT, UPDATE ON catalogw.counter TO cellmart_app;
GRANT SELECT ON catalogw.categories TO cellmart_app;
GRANT SELECT, INSERT, UPDATE ON catalogw.products, catalogw.skus, catalogw.idempotency TO cellmart_app;
