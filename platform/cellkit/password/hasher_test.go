package password

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/errs"
)

var errBusy = errors.New("busy")

func TestHashes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	h := New(2, 10, errs.ErrUnavailable)
	hash, err := h.Hash(ctx, "correct horse")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$v=19$m=19456,t=2,p=1$") {
		t.Fatalf("Hash = %q, %v", hash, err)
	}
	for password, want := range map[string]bool{"correct horse": true, "correct horsf": false, "": false} {
		if got, err := h.Verify(ctx, hash, password); got != want || err != nil {
			t.Errorf("Verify(%q) = %v, %v", password, got, err)
		}
	}
	if got, err := h.Verify(ctx, "", "correct horse"); got || err != nil {
		t.Errorf("nobody's password is right: %v, %v", got, err)
	}
	if _, err := h.Verify(ctx, "$2a$bcrypt", "x"); err == nil {
		t.Error("another form of hash was read")
	}
	if again, _ := h.Hash(ctx, "correct horse"); again == hash {
		t.Error("two hashes share a salt")
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	h := New(1, 1, errBusy)
	if err := h.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiter := make(chan error)
	go func() { waiter <- h.enter(ctx) }()
	for h.waiting.Load() == 0 {
		runtime.Gosched() // until it waits
	}
	if _, err := h.Hash(t.Context(), "one too many"); !errors.Is(err, errBusy) {
		t.Errorf("Hash with a full queue = %v", err)
	}
	cancel()
	if err := <-waiter; !errs.IsKind(err, errs.Unavailable) {
		t.Errorf("out of time in the queue: %v", err)
	}
	h.leave()
	if _, err := h.Hash(t.Context(), "room again"); err != nil {
		t.Error(err)
	}
}
