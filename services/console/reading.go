package console

import "time"

// The states of a Reading.
const (
	Known   = "known"
	Old     = "old"     // the last question failed, or it was too long ago
	Failed  = "failed"  // never known, and the last question failed
	Unknown = "unknown" // nobody was asked yet
)

// Reading is what one source said last.
type Reading[T any] struct {
	Value T
	At    time.Time // of the value; zero = there is none
	Asked time.Time // when the last answer, or the failure, came
	Err   string    // why the last question failed
}

// State says what the reading is worth at now, if it's asked for each so often.
func (r Reading[T]) State(now time.Time, each time.Duration) string {
	switch {
	case r.At.IsZero() && r.Asked.IsZero():
		return Unknown
	case r.At.IsZero():
		return Failed
	case r.Err != "" || now.Sub(r.At) > 3*each:
		return Old
	}
	return Known
}

// Has says that there is a value, however old.
func (r Reading[T]) Has() bool { return !r.At.IsZero() }

// Age is how old the value is.
func (r Reading[T]) Age(now time.Time) time.Duration { return max(0, now.Sub(r.At)) }

// next is the reading after another answer.
func (r Reading[T]) next(v T, err error, now time.Time) Reading[T] {
	if err == nil {
		return Reading[T]{Value: v, At: now, Asked: now}
	}
	r.Asked, r.Err = now, err.Error()
	return r
}
