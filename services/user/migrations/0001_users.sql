-- +goose Up
-- Who the users are (protocols P5, claim).

-- One row per registration, in the slot chosen for the new user. It is the record behind the operation id, and what
-- the claim's home is answered with. GONE is a tombstone: the home asked for a registration that wasn't here.
CREATE TABLE users.registrations (
  slot          int    NOT NULL,
  epoch         bigint NOT NULL,
  rev           bigint NOT NULL,
  op_id         text   NOT NULL,
  user_id       bigint NOT NULL,
  phone         text   NOT NULL,
  phone_mac     bytea  NOT NULL,
  name          text   NOT NULL,
  password_hash text   NOT NULL,
  state         text   NOT NULL CHECK (state IN ('PENDING', 'ACTIVE', 'TAKEN', 'GONE')),
  winner        bigint NOT NULL DEFAULT 0,  -- TAKEN: the user that the same operation made elsewhere
  created_at    timestamptz NOT NULL DEFAULT now(),
  ended_at      timestamptz,
  PRIMARY KEY (slot, user_id),
  CHECK ((state = 'PENDING') = (ended_at IS NULL))
);
CREATE UNIQUE INDEX registrations_op ON users.registrations (slot, op_id) WHERE state <> 'GONE';
SELECT cell.unit_table('users.registrations');

CREATE TABLE users.users (
  slot          int    NOT NULL,
  epoch         bigint NOT NULL,
  rev           bigint NOT NULL,
  id            bigint NOT NULL,
  phone         text   NOT NULL,
  phone_mac     bytea  NOT NULL,
  name          text   NOT NULL,
  password_hash text   NOT NULL,
  seller        boolean NOT NULL DEFAULT false,
  shop_name     text   NOT NULL DEFAULT '',
  created_at    timestamptz NOT NULL DEFAULT now(),
  closed_at     timestamptz,
  PRIMARY KEY (slot, id),
  CONSTRAINT users_phone UNIQUE (slot, phone_mac),
  CHECK (seller = (shop_name <> ''))
);
CREATE INDEX users_by_phone ON users.users (phone_mac);  -- over the slots of this cell, for looking up
SELECT cell.unit_table('users.users');

CREATE TABLE users.addresses (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  id         bigint NOT NULL,
  user_id    bigint NOT NULL,
  recipient  text   NOT NULL,
  phone      text   NOT NULL,
  line       text   NOT NULL,
  city       text   NOT NULL,
  postcode   text   NOT NULL DEFAULT '',
  created_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz,
  PRIMARY KEY (slot, id)
);
CREATE INDEX addresses_by_user ON users.addresses (slot, user_id) WHERE deleted_at IS NULL;
SELECT cell.unit_table('users.addresses');

-- Who has a phone: one row at the phone's home slot, keyed by a keyed hash of it. It never ends by time: while it
-- is PENDING the home asks the user's slot. RELEASED = the user's slot knew nothing of it.
CREATE TABLE users.claims (
  slot         int    NOT NULL,
  epoch        bigint NOT NULL,
  rev          bigint NOT NULL,
  phone_mac    bytea  NOT NULL,
  user_id      bigint NOT NULL,
  user_slot    int    NOT NULL,
  op_id        text   NOT NULL,
  state        text   NOT NULL CHECK (state IN ('PENDING', 'CONFIRMED', 'RELEASED')),
  created_at   timestamptz NOT NULL DEFAULT now(),
  asked_at     timestamptz,
  confirmed_at timestamptz,
  PRIMARY KEY (slot, phone_mac)
);
CREATE INDEX claims_to_ask ON users.claims (created_at) WHERE state = 'PENDING' AND asked_at IS NULL;
SELECT cell.unit_table('users.claims');

-- The confirmed claims of all cells, in each cell's own slot: logging in needs no other cell.
CREATE TABLE users.claim_copies (
  slot       int    NOT NULL,
  epoch      bigint NOT NULL,
  rev        bigint NOT NULL,
  phone_mac  bytea  NOT NULL,
  user_id    bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (slot, phone_mac)
);
SELECT cell.unit_table('users.claim_copies');
