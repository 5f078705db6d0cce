package console

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// livePath is the stream that says when a page is to be drawn anew. It carries no
// figures: the page is asked for again, in its own language.
const livePath = "/live"

const (
	liveEach   = 2 * time.Second  // between two words, at least
	liveQuiet  = 15 * time.Second // without news: a word so that a lost connection is seen
	liveWrite  = 5 * time.Second  // a tab that doesn't read for so long is let go
	maxStreams = 64
)

// handleLive tells one tab of changes until it leaves, is slow, or signs out.
func (s *server) handleLive(w http.ResponseWriter, r *http.Request, operator string) {
	if s.streams.Add(1) > maxStreams {
		s.streams.Add(-1)
		s.fail(w, r, operator, errs.ErrUnavailable) // the page polls then
		return
	}
	defer s.streams.Add(-1)
	out := http.NewResponseController(w)
	defer out.SetWriteDeadline(time.Time{}) //nolint:errcheck // as before: the stream's end is written, and the connection used again
	w.Header().Set("Content-Type", "text/event-stream")
	for n := 0; ; n++ {
		if who, err := s.sessions.who(r.Context(), token(r)); err != nil || who == "" {
			return
		}
		s.collector.look()
		news := s.collector.changed() // before the word: what changes from now on gets another one
		// Only a test's recorder can't: it has no connection.
		_ = out.SetWriteDeadline(time.Now().Add(s.writes))
		if _, err := io.WriteString(w, "event: changed\ndata: "+strconv.Itoa(n)+"\n\n"); err != nil || out.Flush() != nil {
			return
		}
		if !s.pause(r, time.After(liveEach), nil) || !s.pause(r, time.After(liveQuiet), news) {
			return
		}
	}
}

// pause waits for the end of the time, or for news; false when the stream is over.
func (s *server) pause(r *http.Request, end <-chan time.Time, news <-chan struct{}) bool {
	select {
	case <-r.Context().Done():
		return false
	case <-s.stop:
		return false
	case <-end:
	case <-news:
	}
	return true
}
