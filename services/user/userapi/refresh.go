package userapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"

	"example.com/cellmart/platform/cellkit/id"
)

// Refresh is what a refresh token says: whose login it is of, and how often it was
// exchanged. To people it's opaque.
type Refresh struct {
	User   id.ID
	Seat   uint8
	Family uint64
	Turn   uint32
}

const (
	refreshBody = 8 + 1 + 8 + 4
	refreshMAC  = 16
)

// Text is the token, signed by key.
func (r Refresh) Text(key []byte) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(r.User))
	b = append(b, r.Seat)
	b = binary.BigEndian.AppendUint64(b, r.Family)
	b = binary.BigEndian.AppendUint32(b, r.Turn)
	return base64.RawURLEncoding.EncodeToString(append(b, refreshSum(key, b)...))
}

func refreshSum(key, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("refresh\x00"))
	h.Write(body)
	return h.Sum(nil)[:refreshMAC]
}

// ReadRefresh reads a token that Text wrote with the key.
func ReadRefresh(key []byte, text string) (Refresh, bool) {
	r, body, mac, ok := splitRefresh(text)
	return r, ok && hmac.Equal(mac, refreshSum(key, body))
}

// RefreshUser says whose token it is, without knowing whether it's true: who has the
// key asks there.
func RefreshUser(text string) (id.ID, bool) {
	r, _, _, ok := splitRefresh(text)
	return r.User, ok && r.User > 0
}

func splitRefresh(text string) (r Refresh, body, mac []byte, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != refreshBody+refreshMAC {
		return r, nil, nil, false
	}
	r = Refresh{
		User: id.ID(binary.BigEndian.Uint64(b)), Seat: b[8],
		Family: binary.BigEndian.Uint64(b[9:]), Turn: binary.BigEndian.Uint32(b[17:]),
	}
	return r, b[:refreshBody], b[refreshBody:], true
}

// RefreshRequest is the body of POST /sessions/refresh and POST /sessions/end.
type RefreshRequest struct {
	RefreshToken string `json:"refresh_token"`
}

// Denied says whose tokens are refused that were issued up to when, in Unix seconds.
type Denied struct {
	Users map[id.ID]int64 `json:"users"`
}
