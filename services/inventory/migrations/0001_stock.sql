-- +goose Up
-- Stock, homed at the seller's slot (design 7). Quota for other cells comes later; the check then gets a column.
CREATE TABLE inventory.stock (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  sku        bigint NOT NULL,
  seller_id  bigint NOT NULL,
  stocked    bigint NOT NULL,               -- every unit ever added
  free       bigint NOT NULL CONSTRAINT stock_free CHECK (free >= 0),
  held       bigint NOT NULL DEFAULT 0 CONSTRAINT stock_held CHECK (held >= 0),
  sold       bigint NOT NULL DEFAULT 0 CONSTRAINT stock_sold CHECK (sold >= 0),
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, sku),
  CONSTRAINT stock_sum CHECK (stocked = free + held + sold)
);
CREATE INDEX stock_by_seller ON inventory.stock (slot, seller_id, created_at, sku);
SELECT cell.unit_table('inventory.stock');

-- One row per order and seller; ends are kept, so that what comes late finds them.
CREATE TABLE inventory.holds (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  id         bigint NOT NULL,
  order_id   bigint NOT NULL,
  buyer_slot int    NOT NULL,
  seller_id  bigint NOT NULL,
  state      text   NOT NULL CHECK (state IN ('HELD', 'CONFIRMED', 'RELEASED', 'EXPIRED')),
  tombstone  boolean NOT NULL DEFAULT false, -- ended before it began: no lines
  expires_at timestamptz NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  changed_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, id)
);
CREATE INDEX holds_due ON inventory.holds (expires_at) WHERE state = 'HELD';
CREATE INDEX holds_by_order ON inventory.holds (slot, order_id);
SELECT cell.unit_table('inventory.holds');

CREATE TABLE inventory.hold_lines (
  slot     int    NOT NULL,
  epoch    bigint NOT NULL,
  rev      bigint NOT NULL,
  hold_id  bigint NOT NULL,
  sku      bigint NOT NULL,
  quantity bigint NOT NULL CHECK (quantity > 0),
  PRIMARY KEY (slot, hold_id, sku)
);
CREATE INDEX hold_lines_by_sku ON inventory.hold_lines (slot, sku);
SELECT cell.unit_table('inventory.hold_lines');
