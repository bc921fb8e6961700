package strictyaml

import "strings"

// Suggest returns the word among those that was probably meant by word, or ""
// when none is near. Letter case, dashes and underscores do not count; else one
// letter in three, and at most three, may be wrong, missing, too many or swapped
// with the next. Of equally near words the first is taken.
func Suggest(word string, among []string) string {
	best, nearest := "", min(3, max(1, len(word)/3))+1
	for _, candidate := range among {
		if candidate == "" || candidate == word {
			continue
		}
		if d := distance(fold(word), fold(candidate), nearest); d < nearest {
			best, nearest = candidate, d
		}
	}
	return best
}

var folding = strings.NewReplacer("-", "", "_", "")

func fold(word string) string { return folding.Replace(strings.ToLower(word)) }

// distance counts the letters to replace, insert, remove or swap with their
// neighbour to make b of a. At limit it gives up.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replaced := last[j-1]
			if a[i-1] != b[j-1] {
				replaced++
			}
			row[j] = min(replaced, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
