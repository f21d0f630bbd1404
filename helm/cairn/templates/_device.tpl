{{/*
GPUs of a container, by its values "device": a limit of the device plugin, or a claim of the pod that
its containers share (resource.k8s.io).
*/}}

{{/* Memory beside a container's own: the driver, and buffers for copies. */}}
{{- define "cairn.driverMiB" -}}
{{ ternary 512 0 .enabled }}
{{- end -}}

{{- define "cairn.deviceLimit" -}}
{{- if and .enabled (not .claimTemplate) -}}
nvidia.com/gpu: {{ .gpus }}
{{- end -}}
{{- end -}}

{{- define "cairn.deviceClaim" -}}
{{- if and .enabled .claimTemplate -}}
claims: [{name: gpu}]
{{- end -}}
{{- end -}}

{{/* Of a pod. Call with (dict "devices" LIST), the values of its containers, which agree (cairn.checkWorker). */}}
{{- define "cairn.podDevice" -}}
{{- $claim := "" -}}
{{- $class := "" -}}
{{- range .devices -}}
{{- if .enabled -}}
{{- $claim = .claimTemplate | default $claim -}}
{{- $class = .runtimeClassName | default $class -}}
{{- end -}}
{{- end -}}
{{- with $class }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $claim }}
resourceClaims: [{name: gpu, resourceClaimTemplateName: {{ . }}}]
{{- end }}
{{- end -}}
