-- +goose Up
-- A column of every type whose text depends on something, and of the plain ones.
CREATE TYPE kinds.mood AS ENUM ('sad', 'glad');
CREATE DOMAIN kinds.code AS text CHECK (length(VALUE) < 100);

CREATE TABLE kinds.things (
  slot  int    NOT NULL,
  epoch bigint NOT NULL,
  rev   bigint NOT NULL,
  id    bigint NOT NULL,
  a_text text, a_code kinds.code, a_mood kinds.mood, a_bool boolean, a_char char(8), a_uuid uuid, a_json json, a_jsonb jsonb,
  a_int int, a_num numeric, a_real real, a_float float8, a_money money, a_bytes bytea,
  a_date date, a_time time, a_timetz timetz, a_ts timestamp, a_tstz timestamptz, a_span interval, a_range tstzrange,
  a_list text[], a_times timestamptz[], a_floats float8[], a_net inet, "Odd ""Name" text,
  PRIMARY KEY (slot, id)
);
SELECT cell.unit_table('kinds.things');

-- Two parts of a key, one of them text.
CREATE TABLE kinds.words (
  slot  int    NOT NULL,
  epoch bigint NOT NULL,
  rev   bigint NOT NULL,
  who   bigint NOT NULL,
  word  text   NOT NULL,
  n     int    NOT NULL DEFAULT 0,
  PRIMARY KEY (slot, who, word)
);
SELECT cell.unit_table('kinds.words');

-- One row for each slot.
CREATE TABLE kinds.sums (
  slot  int    PRIMARY KEY,
  epoch bigint NOT NULL,
  rev   bigint NOT NULL,
  total bigint NOT NULL
);
SELECT cell.unit_table('kinds.sums');
