package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"example.com/cellmart/platform/cellkit/password"
)

const (
	sessionFor  = 12 * time.Hour
	sessionEach = 30 * time.Second // how often the database is asked about a session in use
	sessionSoon = 5 * time.Second  // the same when it gave no answer
	sessionWait = time.Second      // how long a page waits for that answer
	minPassword = 12
	maxPassword = 200
)

// errWrong is a name or a password that is wrong: which of them only the log is told.
var (
	errWrong  = errors.New("that name and password don't belong together")
	errNobody = fmt.Errorf("%w: nobody is called that", errWrong)
)

// sessions knows who is signed in. One that was seen stays good while the database
// can't be asked, until its end.
type sessions struct {
	records records
	hasher  *password.Hasher
	wait    time.Duration // for the database's word about a session
	now     func() time.Time

	mu   sync.Mutex
	seen map[sessionKey]session
}

type session struct {
	operator string
	ends     time.Time
	asked    time.Time // when the database said so
	over     bool      // signed out here: never good again
}

func newSessions(r records, h *password.Hasher) *sessions {
	return &sessions{records: r, hasher: h, wait: sessionWait, now: time.Now, seen: map[sessionKey]session{}}
}

// signIn gives a new session's token, or errWrong.
func (s *sessions) signIn(ctx context.Context, name, pass string) (token string, ends time.Time, err error) {
	if len(pass) > maxPassword || len(name) > maxPassword {
		return "", time.Time{}, errNobody
	}
	hash, err := s.records.operatorHash(ctx, name)
	if err != nil {
		return "", time.Time{}, err
	}
	ok, err := s.hasher.Verify(ctx, hash, pass)
	if err != nil {
		return "", time.Time{}, err
	}
	switch {
	case hash == "":
		return "", time.Time{}, errNobody
	case !ok:
		return "", time.Time{}, errWrong
	}
	token, ends = rand.Text()+rand.Text(), s.now().Add(sessionFor)
	key := sessionKey(sha256.Sum256([]byte(token)))
	if err := s.records.addSession(ctx, key, name, ends); err != nil {
		return "", time.Time{}, err
	}
	s.keep(key, session{operator: name, ends: ends, asked: s.now()})
	return token, ends, nil
}

// who gives a token's operator, "" when there is none.
func (s *sessions) who(ctx context.Context, token string) (string, error) {
	if token == "" {
		return "", nil
	}
	key, now := sessionKey(sha256.Sum256([]byte(token))), s.now()
	s.mu.Lock()
	had, known := s.seen[key]
	fresh := now.Sub(had.asked) < sessionEach
	if known && !fresh {
		soon := had // nobody else waits for this answer, and without one it's asked for soon
		soon.asked = now.Add(sessionSoon - sessionEach)
		s.seen[key] = soon
	}
	s.mu.Unlock()
	switch {
	case known && (had.over || !now.Before(had.ends)):
		return "", nil
	case known && fresh:
		return had.operator, nil
	}
	asking, done := context.WithTimeout(ctx, s.wait)
	defer done()
	operator, ends, err := s.records.session(asking, key)
	switch {
	case err != nil && known:
		return had.operator, nil
	case err != nil:
		return "", err
	case operator == "":
		s.mu.Lock()
		delete(s.seen, key)
		s.mu.Unlock()
		return "", nil
	}
	s.keep(key, session{operator: operator, ends: ends, asked: now})
	return operator, nil
}

// keep notes a session and forgets those that are over. One that was signed out
// meanwhile stays so.
func (s *sessions) keep(key sessionKey, is session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, old := range s.seen {
		if !s.now().Before(old.ends) {
			delete(s.seen, k)
		}
	}
	if !s.seen[key].over {
		s.seen[key] = is
	}
}

// signOut ends a session, here also while the database can't be told.
func (s *sessions) signOut(ctx context.Context, token string) error {
	key := sessionKey(sha256.Sum256([]byte(token)))
	s.mu.Lock()
	if had, ok := s.seen[key]; ok {
		had.over = true
		s.seen[key] = had
	}
	s.mu.Unlock()
	return s.records.endSession(ctx, key)
}

// errShort is a new password that is too short or too long.
var errShort = fmt.Errorf("a password has %d to %d bytes", minPassword, maxPassword)

// change gives an operator another password and ends their other sessions: here at
// once, at another console within half a minute.
func (s *sessions) change(ctx context.Context, operator, token, old, pass string) error {
	if len(pass) < minPassword || len(pass) > maxPassword {
		return errShort
	}
	if len(old) > maxPassword {
		return errWrong
	}
	was, err := s.records.operatorHash(ctx, operator)
	if err != nil {
		return err
	}
	ok, err := s.hasher.Verify(ctx, was, old)
	if err != nil {
		return err
	}
	if !ok {
		return errWrong
	}
	hash, err := s.hasher.Hash(ctx, pass)
	if err != nil {
		return err
	}
	own := sessionKey(sha256.Sum256([]byte(token)))
	done, err := s.records.setHash(ctx, operator, was, hash, own)
	if err != nil {
		return err
	}
	if !done {
		return errWrong // changed meanwhile
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, is := range s.seen {
		if is.operator == operator && key != own {
			is.over = true
			s.seen[key] = is
		}
	}
	return nil
}

// firstName is the first operator's name.
const firstName = "operator"

// first makes the first operator, with the given password, or with a random one that
// is printed then and never again. It waits for the database.
func (s *sessions) first(ctx context.Context, given string, out io.Writer, log *slog.Logger) error {
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		err := s.tryFirst(ctx, given, out)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		log.Warn("no first operator yet", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (s *sessions) tryFirst(ctx context.Context, given string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if n, err := s.records.operators(ctx); err != nil || n > 0 {
		return err
	}
	pass := given
	if pass == "" {
		pass = rand.Text()
	}
	hash, err := s.hasher.Hash(ctx, pass)
	if err != nil {
		return err
	}
	_, err = s.records.firstOperator(ctx, firstName, hash, func() error {
		if given != "" {
			return nil
		}
		_, err := fmt.Fprintf(out, "console: the first operator is %q with the password %s (it's said once)\n", firstName, pass)
		return err
	})
	return err
}
