-- +goose Up
CREATE TABLE shop.things (
  slot  int    NOT NULL,
  epoch bigint NOT NULL,
  rev   bigint NOT NULL,
  id    bigint NOT NULL,
  name  text   NOT NULL,
  note  text,
  inner_secret text NOT NULL DEFAULT 'never leaves',
  PRIMARY KEY (slot, id)
);
SELECT cell.unit_table('shop.things');
