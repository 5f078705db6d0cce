package storefront

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

const (
	streamEach  = time.Second     // between two looks at what waits
	streamRest  = time.Second     // left of the request's time when a stream ends by itself
	streamWrite = 5 * time.Second // a tab that doesn't read for so long is let go
	maxStreams  = 256             // of one gateway; who comes then polls
)

// wantsStream says that a tab asks to be told of changes, not for a page.
func (v *visit) wantsStream() bool {
	return v.r.Method == http.MethodGet && strings.Contains(v.r.Header.Get("Accept"), "text/event-stream")
}

// stream tells one tab when a page that waits has changed. It carries no content:
// the tab asks for the page in its own language. It ends with the request's time,
// and the browser opens the next one; what that brings when nothing has happened
// meanwhile is nothing, by Last-Event-ID. 204 ends it for good: the page doesn't
// wait (any more).
func (v *visit) stream(rt route) error {
	if v.shop.streams.Add(1) > maxStreams {
		v.shop.streams.Add(-1)
		return errs.ErrUnavailable
	}
	defer v.shop.streams.Add(-1)
	told, begun := v.r.Header.Get("Last-Event-ID"), false
	for {
		sum, waits, err := v.glance(rt)
		switch {
		case err != nil && begun:
			return nil // the next stream is told why
		case err != nil:
			return err
		case !waits && (sum == told || !begun && told == ""):
			v.w.WriteHeader(http.StatusNoContent)
			return nil
		}
		word := ""
		if sum != told {
			word, told = "event: changed\nid: "+sum+"\ndata:\n\n", sum
		}
		if !begun {
			begun = true
			v.w.Header().Set("Content-Type", "text/event-stream")
			word = "retry: 1000\n\n" + word
		}
		if v.tell(word) != nil || !waits || !v.pause() {
			return nil // who can't be written to is gone
		}
	}
}

// glance makes the page and keeps only what tells it from another.
func (v *visit) glance(rt route) (sum string, waits bool, err error) {
	inner, rec := *v, &recorder{header: http.Header{}}
	inner.w, inner.waits = rec, false
	if err := rt.do(&inner); err != nil {
		return "", false, err
	}
	if rec.status != http.StatusOK {
		return "", false, fmt.Errorf("%w: no page that waits", errNotFound)
	}
	hash := sha256.Sum256(rec.body.Bytes())
	return hex.EncodeToString(hash[:6]), inner.waits, nil
}

func (v *visit) tell(word string) error {
	if word == "" {
		return v.ctx.Err()
	}
	out := http.NewResponseController(v.w)
	_ = out.SetWriteDeadline(time.Now().Add(streamWrite)) // only a test's recorder can't
	defer out.SetWriteDeadline(time.Time{})               //nolint:errcheck // as before: the connection is used again
	if _, err := v.w.Write([]byte(word)); err != nil {
		return err
	}
	return out.Flush()
}

// pause waits until it's time to look again; false when the stream is over.
func (v *visit) pause() bool {
	if end, ok := v.ctx.Deadline(); ok && time.Until(end) < streamRest+v.shop.each {
		return false
	}
	select {
	case <-time.After(v.shop.each):
		return true
	case <-v.ctx.Done():
		return false
	}
}
