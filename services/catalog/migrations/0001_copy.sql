-- +goose Up
-- A full read copy of the catalog. It is broadcast data, not unit data: every cell has all of it, it has no slot and
-- no epoch, and losing it costs one pull from the writer.

-- How far the copy is, changed in the same transaction as the rows. A generation is one pull from the beginning; its
-- first number is random, so that a new database shares no cached answer with the one before it.
CREATE TABLE catalog.copy (
  one        boolean PRIMARY KEY DEFAULT true CHECK (one),
  history    text    NOT NULL DEFAULT '', -- the writer's database that the copy is of
  version    bigint  NOT NULL DEFAULT 0,  -- everything up to here is in
  generation bigint  NOT NULL DEFAULT floor(random() * 1e15)::bigint,
  rebuilding boolean NOT NULL DEFAULT true,  -- rows of older generations are swept when the writer's newest is reached
  complete   boolean NOT NULL DEFAULT false  -- was once, so what isn't here doesn't exist
);
INSERT INTO catalog.copy DEFAULT VALUES;

CREATE TABLE catalog.categories (
  id         text   PRIMARY KEY,
  name       text   NOT NULL,
  position   int    NOT NULL,
  generation bigint NOT NULL
);

CREATE TABLE catalog.products (
  id          bigint PRIMARY KEY,
  seller_id   bigint NOT NULL,
  title       text   NOT NULL,
  description text   NOT NULL,
  category    text   NOT NULL,
  active      boolean NOT NULL,
  version     bigint NOT NULL,
  generation  bigint NOT NULL,
  created_at  timestamptz NOT NULL,
  updated_at  timestamptz NOT NULL
);
-- One for each way to list: all, of a category, of a seller.
CREATE INDEX products_all ON catalog.products (created_at DESC, id DESC) WHERE active;
CREATE INDEX products_by_category ON catalog.products (category, created_at DESC, id DESC) WHERE active;
CREATE INDEX products_by_seller ON catalog.products (seller_id, created_at DESC, id DESC) WHERE active;

CREATE TABLE catalog.skus (
  id         bigint PRIMARY KEY,
  product_id bigint NOT NULL REFERENCES catalog.products ON DELETE CASCADE,
  position   int    NOT NULL,
  title      text   NOT NULL,
  price      bigint NOT NULL,
  currency   text   NOT NULL
);
CREATE INDEX skus_by_product ON catalog.skus (product_id, position);

GRANT SELECT, UPDATE ON catalog.copy TO cellmart_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON catalog.categories, catalog.products, catalog.skus TO cellmart_app;
GRANT SELECT ON ALL TABLES IN SCHEMA catalog TO cellmart_agent;
