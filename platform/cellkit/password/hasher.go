package password

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"
	"sync/atomic"

	"golang.org/x/crypto/argon2"

	"example.com/cellmart/platform/cellkit/errs"
)

// argon2id as OWASP's second choice has it: 19 MiB, two passes, one lane.
const (
	argonMemory = 19 * 1024
	argonTime   = 2
	argonLanes  = 1
	saltSize    = 16
	hashSize    = 32
)

// Hasher runs few password hashes at a time, since each takes 19 MiB and a core
// for tens of milliseconds, and lets few wait: the rest is told to come back.
type Hasher struct {
	run     chan struct{}
	waiting atomic.Int64
	queue   int64
	busy    error
	dummy   string // what an unknown phone's password is held against
}

// New makes a Hasher for that many hashes at once, and that many who wait; busy is
// what the next one is told.
func New(atOnce, queue int, busy error) *Hasher {
	salt := make([]byte, saltSize) // of a password that nobody has
	return &Hasher{run: make(chan struct{}, atOnce), queue: int64(queue), busy: busy, dummy: format(salt, make([]byte, hashSize))}
}

// enter takes a place, or gives busy (too many wait) or an error of ctx.
func (h *Hasher) enter(ctx context.Context) error {
	if h.waiting.Add(1) > h.queue {
		h.waiting.Add(-1)
		return h.busy
	}
	defer h.waiting.Add(-1)
	select {
	case h.run <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errs.ErrUnavailable.Because(ctx.Err())
	}
}

func (h *Hasher) leave() { <-h.run }

// Hash gives a password's hash in the usual text form.
func (h *Hasher) Hash(ctx context.Context, password string) (string, error) {
	salt := make([]byte, saltSize)
	if _, err := rand.Read(salt); err != nil {
		return "", err
	}
	if err := h.enter(ctx); err != nil {
		return "", err
	}
	defer h.leave()
	return format(salt, argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonLanes, hashSize)), nil
}

// Verify says whether the password belongs to the hash. An empty hash (nobody has
// that phone) takes as long and is never right.
func (h *Hasher) Verify(ctx context.Context, hash, password string) (bool, error) {
	known := hash != ""
	if !known {
		hash = h.dummy
	}
	salt, want, err := parse(hash)
	if err != nil {
		return false, err
	}
	if err := h.enter(ctx); err != nil {
		return false, err
	}
	defer h.leave()
	got := argon2.IDKey([]byte(password), salt, argonTime, argonMemory, argonLanes, hashSize)
	return subtle.ConstantTimeCompare(got, want) == 1 && known, nil
}

const phc = "$argon2id$v=19$m=19456,t=2,p=1$" // argon2.Version and the numbers above

func format(salt, hash []byte) string {
	b := base64.RawStdEncoding
	return phc + b.EncodeToString(salt) + "$" + b.EncodeToString(hash)
}

// parse reads what format wrote. Other parameters come with a reader for them.
func parse(s string) (salt, hash []byte, err error) {
	rest, ok := strings.CutPrefix(s, phc)
	saltText, hashText, cut := strings.Cut(rest, "$")
	if !ok || !cut {
		return nil, nil, errors.New("a password hash of another form")
	}
	b := base64.RawStdEncoding
	if salt, err = b.DecodeString(saltText); err != nil {
		return nil, nil, err
	}
	hash, err = b.DecodeString(hashText)
	return salt, hash, err
}
