-- +goose Up
CREATE TABLE shop.things (
  slot  int    NOT NULL,
  epoch bigint NOT NULL,
  rev   bigint NOT NULL,
  id    bigint NOT NULL,
  name  text   NOT NULL,
  note  text,
  PRIMARY KEY (slot, id),
  UNIQUE (slot, name)
);
SELECT cell.unit_table('shop.things');

-- Every type that a unit table has, and the usual others.
CREATE TYPE shop.mood AS ENUM ('glad', 'sad');
CREATE TABLE shop.types (
  slot   int    NOT NULL,
  epoch  bigint NOT NULL,
  rev    bigint NOT NULL,
  key    text   NOT NULL,
  "From" int    NOT NULL,
  a_bool  boolean,
  a_small smallint,
  a_big   bigint,
  a_real  real,
  a_dbl   double precision,
  a_num   numeric(20, 4),
  a_text  text,
  a_char  char(5),
  a_bytes bytea,
  a_json  jsonb,
  a_plain json,
  a_time  timestamptz,
  a_local timestamp,
  a_day   date,
  a_span  interval,
  a_uuid  uuid,
  a_list  int[],
  a_texts text[],
  a_mood  shop.mood,
  a_range numrange,
  a_inet  inet,
  a_twice bigint GENERATED ALWAYS AS (a_big * 2) STORED,
  PRIMARY KEY (slot, key, "From")
);
SELECT cell.unit_table('shop.types');
