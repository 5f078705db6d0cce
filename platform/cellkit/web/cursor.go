package web

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
)

const (
	macSize   = 16   // bytes of the HMAC that a cursor carries
	maxCursor = 1024 // characters
)

// EncodeCursor packs where a list goes on (the last row's sort key) into an
// opaque text, signed with key, so that nobody can make one up. Put what the
// list is about (whose orders, which filter) into v too and compare it after
// decoding: a cursor of one list must not open another. A v that JSON can't
// hold is a bug and panics.
func EncodeCursor(key []byte, v any) string {
	payload, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("web: cursor of type %T: %v", v, err))
	}
	return base64.RawURLEncoding.EncodeToString(append(cursorMAC(key, payload), payload...))
}

// DecodeCursor reads what EncodeCursor wrote; anything else is INVALID_CURSOR.
func DecodeCursor(key []byte, s string, v any) error {
	if len(s) > maxCursor {
		return ErrInvalidCursor
	}
	// Strict: two texts never mean the same cursor.
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(raw) < macSize {
		return ErrInvalidCursor
	}
	mac, payload := raw[:macSize], raw[macSize:]
	if !hmac.Equal(mac, cursorMAC(key, payload)) {
		return ErrInvalidCursor
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return ErrInvalidCursor.Because(err)
	}
	return nil
}

func cursorMAC(key, payload []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("cursor\x00"))
	h.Write(payload)
	return h.Sum(nil)[:macSize]
}
