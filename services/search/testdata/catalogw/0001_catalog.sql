-- +goose Up
CREATE TABLE catalogw.products (
  id          bigint PRIMARY KEY,
  seller_id   bigint NOT NULL,
  title       text   NOT NULL,
  description text   NOT NULL,
  category    text   NOT NULL,
  active      boolean NOT NULL DEFAULT true,
  version     bigint NOT NULL,
  created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE catalogw.skus (
  id         bigint PRIMARY KEY,
  product_id bigint NOT NULL REFERENCES catalogw.products,
  position   int    NOT NULL,
  title      text   NOT NULL,
  price      bigint NOT NULL,
  currency   text   NOT NULL
);
