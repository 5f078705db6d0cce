package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of data, or what a link carries in a second.
type Bytes float64

const (
	mebibyte = 1 << 20
	largest  = Bytes(1 << 60) // an exbibyte: a slip of the hand, not a cell
)

// prefixes in rising order, each 1024 times the one before.
var prefixes = [...]string{"", "k", "m", "g", "t", "p"}

// ParseBytes reads 20TiB, 1.5TB, 800GiB, 4096 (bytes): powers of 1024, as in
// Postgres' settings.
func ParseBytes(s string) (Bytes, error) {
	end := strings.LastIndexAny(s, "0123456789.") + 1
	n, err := strconv.ParseFloat(s[:end], 64)
	if err != nil || strings.ContainsAny(s[:end], "xXpP_+") {
		return 0, fmt.Errorf("%q isn't like 20TiB", s)
	}
	unit := strings.ToLower(s[end:])
	unit, named := strings.CutSuffix(unit, "b")
	if prefix, binary := strings.CutSuffix(unit, "i"); named && binary && prefix != "" {
		unit = prefix
	}
	for i, p := range prefixes {
		if unit != p {
			continue
		}
		b := Bytes(math.Ldexp(n, 10*i))
		if !(b > 0) || b > largest {
			return 0, fmt.Errorf("%q isn't above 0 and at most 1 EiB", s)
		}
		return b, nil
	}
	return 0, fmt.Errorf("%q: units are B, KiB, MiB, GiB, TiB, PiB", s)
}

// ParseRate reads 200MB/s.
func ParseRate(s string) (Bytes, error) {
	amount, ok := strings.CutSuffix(s, "/s")
	if !ok {
		return 0, fmt.Errorf("%q isn't like 200MB/s", s)
	}
	return ParseBytes(amount)
}

// String is the amount in the largest unit that it has one of.
func (b Bytes) String() string {
	i := 0
	for i < len(prefixes)-1 && b >= 1024 {
		b /= 1024
		i++
	}
	unit := "B"
	if i > 0 {
		unit = strings.ToUpper(prefixes[i]) + "iB"
	}
	return strconv.FormatFloat(math.Round(float64(b)*100)/100, 'f', -1, 64) + " " + unit
}
