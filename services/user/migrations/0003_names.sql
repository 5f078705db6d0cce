-- +goose Up
-- What a payer is shown before paying: the payee's name, all but its ends hidden, in the copies that every cell has. So
-- nobody pays a mistyped number unseen, and the payee's cell isn't needed to look. The whole name stays at home.

-- Which of the user's names it is: copies come in any order, and the newest stays.
ALTER TABLE users.users        ADD COLUMN name_no bigint NOT NULL DEFAULT 0;
ALTER TABLE users.claim_copies ADD COLUMN name    text   NOT NULL DEFAULT '',  -- hidden: A***n
                               ADD COLUMN name_no bigint NOT NULL DEFAULT -1;  -- -1: a copy from before, without one
CREATE INDEX claim_copies_by_user ON users.claim_copies (slot, user_id);
