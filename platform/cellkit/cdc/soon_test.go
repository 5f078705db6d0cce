package cdc

import (
	"context"
	"testing"
	"time"
)

// A sink that asks for a copy while the session that told it of a loss is still
// beginning is heard when it has begun.
func TestAskingWhileTheSessionBegins(t *testing.T) {
	t.Parallel()
	r := &Relay{}
	want := &target{sink: Sink{Name: "search"}}
	begin := time.AfterFunc(50*time.Millisecond, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now = &session{targets: []*target{want}}
	})
	defer begin.Stop()
	if got := r.soon(t.Context(), "search"); got != want {
		t.Errorf("got %v, want the session's sink", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := r.soon(ended, "nobody"); got != nil {
		t.Errorf("got %v of a sink that isn't there", got)
	}
}
