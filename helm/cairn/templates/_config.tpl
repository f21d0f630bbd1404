{{/*
A program's settings: what the chart computes, and over it the values' `config`. What the chart must own is refused.
Call with (dict "root" $ "role" "cache" "computed" YAML). The result is YAML.
*/}}
{{- define "cairn.config" -}}
{{- $role := .role -}}
{{- $given := (index .root.Values $role).config | default dict -}}
{{- $owned := index (.root.Files.Get "files/owned-settings.yaml" | fromYaml) $role -}}
{{- range $key, $reason := $owned -}}
{{- if ne (include "cairn.setting" (dict "settings" $given "key" $key)) "" -}}
{{- fail (printf "%s.config: got %s, which the chart sets itself: %s" $role $key $reason) -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite (fromYaml .computed) (deepCopy $given) | toYaml -}}
{{- end -}}

{{/* One setting as JSON; empty if it is not there. Call with (dict "settings" MAP "key" "a.b"). */}}
{{- define "cairn.setting" -}}
{{- $at := .settings -}}
{{- $found := true -}}
{{- range splitList "." .key -}}
{{- if and $found (kindIs "map" $at) (hasKey $at .) -}}
{{- $at = index $at . -}}
{{- else -}}
{{- $found = false -}}
{{- end -}}
{{- end -}}
{{- if $found }}{{ toJson $at }}{{ end -}}
{{- end -}}

{{/* The same, or a default. Call with "default" too. */}}
{{- define "cairn.settingOr" -}}
{{- $found := include "cairn.setting" . -}}
{{- if eq $found "" }}{{ .default }}{{ else }}{{ trimAll "\"" $found }}{{ end -}}
{{- end -}}

{{/* Whole seconds of a time such as 250ms, 10s or 1m, rounded up. */}}
{{- define "cairn.seconds" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $factors := dict "us" 0.000001 "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 "d" 86400.0 -}}
{{- mulf $number (get $factors $unit | default 1.0) | ceil | int -}}
{{- end -}}

{{/* MiB of a size such as 512MiB or 64KB, rounded up. */}}
{{- define "cairn.mebibytes" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[A-Za-z]+$" . -}}
{{- $factors := dict "" 0.00000095367431640625 "B" 0.00000095367431640625 "KB" 0.00095367431640625 "KiB" 0.0009765625 "MB" 0.95367431640625 "MiB" 1.0 "GB" 953.67431640625 "GiB" 1024.0 "TB" 953674.31640625 "TiB" 1048576.0 -}}
{{- mulf $number (get $factors $unit | default 1.0) | ceil | int -}}
{{- end -}}

{{/* KiB of such a size, rounded up. */}}
{{- define "cairn.kibibytes" -}}
{{- $number := regexFind "^[0-9.]+" . | float64 -}}
{{- $unit := regexFind "[A-Za-z]+$" . -}}
{{- $factors := dict "" 0.0009765625 "B" 0.0009765625 "KB" 0.9765625 "KiB" 1.0 "MB" 976.5625 "MiB" 1024.0 -}}
{{- mulf $number (get $factors $unit | default 1.0) | ceil | int -}}
{{- end -}}

{{/* MiB of settings together. Call with (dict "config" MAP "sizes" (dict KEY DEFAULT ...)). */}}
{{- define "cairn.mebibytesOf" -}}
{{- $config := .config -}}
{{- $sum := 0 -}}
{{- range $key, $default := .sizes -}}
{{- $sum = add $sum (include "cairn.mebibytes" (include "cairn.settingOr" (dict "settings" $config "key" $key "default" $default))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* A value that covers bounds, or what is needed. Call with (dict "name" "x" "given" MIB "bounds" MIB "needed" MIB). */}}
{{- define "cairn.covers" -}}
{{- if and .given (lt (int .given) (int .bounds)) -}}
{{- fail (printf "%s: got %d, expected at least %d, which the program's bounds add up to, or 0 for what is needed" .name (int .given) (int .bounds)) -}}
{{- end -}}
{{- .given | default .needed | int64 -}}
{{- end -}}
