package call

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit/errs"
)

// ProblemType is the content type of an error body.
const ProblemType = "application/problem+json"

// Problem is the body of every error answer (RFC 9457). Programs compare Code;
// Cell, Owner and Epoch say where to ask instead or who is down.
type Problem struct {
	Type       string `json:"type"`
	Title      string `json:"title"`
	Status     int    `json:"status"`
	Code       string `json:"code"`
	Detail     string `json:"detail"`
	Field      string `json:"field,omitempty"`
	RequestID  string `json:"request_id,omitempty"`
	Cell       string `json:"cell,omitempty"`
	Owner      string `json:"owner,omitempty"`
	Epoch      int64  `json:"epoch,omitempty"`
	RetryAfter int64  `json:"retry_after,omitempty"` // seconds, as the header
}

// NewProblem gives the body for an error. 429 and 503 always say when to ask
// again: at least a second, since the header has no fractions.
func NewProblem(e *errs.Error, requestID string) Problem {
	p := Problem{
		Type: "about:blank", Status: e.HTTPStatus(), Title: http.StatusText(e.HTTPStatus()),
		Code: e.Code, Detail: e.Message, Field: e.Field, RequestID: requestID,
		Cell: e.Cell, Owner: e.Owner, Epoch: e.Epoch,
		RetryAfter: int64((e.RetryAfter + time.Second - 1) / time.Second),
	}
	if p.RetryAfter == 0 && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable) {
		p.RetryAfter = 1
	}
	return p
}

// Err turns the body back into the error it was made of, without its cause.
func (p Problem) Err() *errs.Error {
	e := errs.New(errs.KindOf(p.Status), p.Code, p.Detail)
	e.Field, e.Cell, e.Owner, e.Epoch = p.Field, p.Cell, p.Owner, p.Epoch
	e.RetryAfter = time.Duration(p.RetryAfter) * time.Second
	if e.Kind.Status() != p.Status {
		e.Status = p.Status
	}
	return e
}

// DecodeProblem gives the error that an answer with a status of 300 or more
// stands for. An answer that isn't one of ours (a proxy, a wrong port) says
// nothing that may be passed on: its text stays in the cause.
func DecodeProblem(status int, header http.Header, body []byte) *errs.Error {
	mediaType, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	var p Problem
	if mediaType == ProblemType && json.Unmarshal(body, &p) == nil && p.Code != "" {
		p.Status = status
		return p.Err()
	}
	cause := fmt.Errorf("status %d, %s: %.200q", status, mediaType, body)
	if status >= 500 {
		return errs.ErrUnavailable.Because(cause)
	}
	return errs.ErrInternal.Because(cause)
}
